"""`stepstream simulate`: show what a control policy would do on recorded snapshots or on a synthetic fleet."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import orjson

from stepstream.cli.control_policy import read_policy
from stepstream.services.control.decide.own_rules import OwnRule
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.decide.records import Decision
from stepstream.services.control.simulate.scenarios import SCENARIOS

_Policies = dict[str, tuple[ControlPolicy, Sequence[OwnRule]]]


@click.command()
@click.argument("policy", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--log", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="File of recorded snapshots.")
@click.option("--fleet", type=click.Choice(list(SCENARIOS)), help="Scenario of a synthetic fleet.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the synthetic fleet.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def simulate(policy: Path, log: Path | None, fleet: str | None, seed: int, as_json: bool) -> None:
    """Show what the control policy in file POLICY would have done, beside the default policy. Nothing is changed."""
    if (log is None) == (fleet is None):
        raise click.UsageError("name either --log FILE or --fleet SCENARIO")
    parsed, own = read_policy(policy)
    default = ControlPolicy(tenant=parsed.tenant, agents=parsed.agents, models=parsed.models)
    policies: _Policies = {"policy": (parsed, own), "default": (default, ())}
    results = _on_fleet(fleet, seed, policies) if fleet else _on_log(log, policies)
    if as_json:
        click.echo(orjson.dumps(results, option=orjson.OPT_INDENT_2).decode())
        return
    for name, result in results.items():
        click.echo(f"{'the default policy' if name == 'default' else policy}:")
        for decision in result["decisions"]:
            click.echo(
                f"  {decision['at']} {decision['agent']} {decision['action']} {decision['lever']} "
                f"{decision['target']}: {decision['reason']}"
            )
        click.echo("  " + ", ".join(f"{key.replace('_', ' ')} {_word(value)}" for key, value in _figures(result)))


def _on_fleet(scenario: str, seed: int, policies: _Policies) -> dict[str, dict[str, Any]]:
    """Return the result of each policy on equal fleets."""
    from stepstream.services.control.simulate.fleet import Decider, run
    from stepstream.services.control.simulate.world import AGENT, MODEL, TENANT

    results = {}
    for name, (policy, own) in policies.items():
        if not policy.covers(TENANT, AGENT, MODEL):
            policy = policy.model_copy(update={"tenant": TENANT, "agents": (AGENT,), "models": (MODEL,)})
        decider = Decider(policy, own)
        result = run(SCENARIOS[scenario], decider, seed)
        results[name] = {
            "decisions": [_row(decision) for decision in decider.decisions],
            "fault_at": _time(result.onset_us),
            "right_lever": result.right,
            "false_promotion": result.false_promotion,
            "successes_lost": round(result.harm, 1),
            "successes_gained": round(result.gained, 1),
            "delay_trajectories": result.delay,
        }
    return results


def _on_log(log: Path | None, policies: _Policies) -> dict[str, dict[str, Any]]:
    """Return the result of each policy on the recorded snapshots."""
    from stepstream.services.control.simulate.recorded import RecordError, read_lines, replay

    assert log is not None
    try:
        with log.open("rb") as lines:
            records = list(read_lines(lines))
    except RecordError as error:
        raise click.ClickException(f"{log} is no file of recorded snapshots: {error}") from None
    results = {}
    for name, (policy, own) in policies.items():
        decisions = list(replay(records, policy, own))
        pulled = [one for one in decisions if one.action != "hold"]
        results[name] = {
            "decisions": [_row(decision) for decision in pulled],
            "snapshots": len(decisions),
            "pulled": len(pulled),
            "held": len(decisions) - len(pulled),
            "waiting_for_approval": sum(one.approvals > 0 for one in pulled),
            "successes_lost_to_canaries": round(sum(map(_lost, pulled)), 1),
        }
    return results


def _lost(decision: Decision) -> float:
    """Return the successes that a canary had lost when the decision took it back."""
    if decision.action != "rollback":
        return 0.0
    return sum(figure.value or 0.0 for figure in decision.evidence if figure.name == "successes_lost")


def _row(decision: Decision) -> dict[str, Any]:
    return {
        "at": _time(decision.at_us),
        "agent": decision.agent,
        "action": decision.action,
        "lever": decision.lever,
        "target": decision.target,
        "rule": decision.rule,
        "reason": decision.reason,
        "approvals": decision.approvals,
    }


def _figures(result: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in result.items() if key != "decisions"]


def _word(value: Any) -> str:
    if value is None:
        return "none"
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def _time(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="seconds")
