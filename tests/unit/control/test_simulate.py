"""Simulation: synthetic fleets and recorded snapshots through the decision function."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from stepstream.cli.main import cli
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.simulate.fleet import Decider, run
from stepstream.services.control.simulate.recorded import Recorded, RecordError, read_lines, replay, to_line
from stepstream.services.control.simulate.scenarios import SCENARIOS
from stepstream.services.control.simulate.world import World


def recorded(faults: set[str], ticks: int, seed: int = 1) -> list[Recorded]:
    """Return the snapshots of a fleet that nobody controls."""
    world = World(frozenset(faults), 50, 20, np.random.default_rng(seed))
    records = []
    for _ in range(ticks):
        world.advance()
        records.append(Recorded(world.snapshot(), world.history([])))
    return records


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_default_policy_pulls_the_right_lever(scenario: str) -> None:
    result = run(SCENARIOS[scenario], Decider(ControlPolicy()), 0)
    assert result.right
    assert not result.false_promotion


def test_equal_arguments_give_equal_decisions() -> None:
    first, second = Decider(ControlPolicy()), Decider(ControlPolicy())
    assert run(SCENARIOS["tool and poison"], first, 4) == run(SCENARIOS["tool and poison"], second, 4)
    assert [one.to_bytes() for one in first.decisions] == [one.to_bytes() for one in second.decisions]


def test_a_record_survives_its_line() -> None:
    records = recorded({"tool", "equal"}, 24)
    assert list(read_lines(map(to_line, records))) == records


def test_a_replay_keeps_to_the_limits_of_its_own_decisions() -> None:
    records = recorded({"tool"}, 60)
    decisions = [one for one in replay(records, ControlPolicy()) if one.action != "hold"]
    assert {(one.action, one.lever) for one in decisions} == {("disable", "tools")}
    disabled = ControlPolicy.parse("[levers.tools]\nenabled = false\n")
    assert all(one.action == "hold" for one in replay(records, disabled))


def test_a_line_that_is_no_record_is_refused_with_its_number() -> None:
    good = to_line(recorded(set(), 1)[0])
    with pytest.raises(RecordError, match="line 3: "):
        list(read_lines([good, b"\n", b'{"snapshot": 1, "history": {}}']))


def test_a_policy_that_disables_a_lever_is_shown_beside_the_default(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('agents = ["shop"]\n[levers.tools]\nenabled = false\n')
    words = ["simulate", str(policy), "--fleet", "tool breaks", "--json"]
    results = json.loads(CliRunner().invoke(cli, words).output)
    assert (results["policy"]["decisions"], results["policy"]["right_lever"]) == ([], False)
    assert [one["action"] for one in results["default"]["decisions"]] == ["disable"]
    assert results["default"]["successes_lost"] < results["policy"]["successes_lost"]


def test_one_source_is_needed(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.touch()
    assert CliRunner().invoke(cli, ["simulate", str(policy)]).exit_code == 2
