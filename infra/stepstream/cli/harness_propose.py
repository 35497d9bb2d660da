"""`stepstream harness propose`: search a better harness in recorded trajectories, and propose it."""

import getpass
from typing import TYPE_CHECKING, cast

import click
import orjson

from stepstream.config import load
from stepstream.topics.catalogue import HARNESSES
from stepstream.topics.events import Harness
from stepstream.versions import harnesses

if TYPE_CHECKING:
    from stepstream.services.control.optimise.propose import By, Search


@click.command("propose")
@click.option("--agent", required=True, help="Agent whose trajectories are searched.")
@click.option("--tenant", default="default", show_default=True, help="Tenant of the agent.")
@click.option(
    "--by",
    multiple=True,
    type=click.Choice(["examples", "gepa"]),
    help="Optimiser; may be repeated, in order. Default: examples, then gepa if a reflection model is set.",
)
@click.option("--budget", type=click.IntRange(min=1), help="Limit of model calls; default: `optimise.calls`.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def propose(agent: str, tenant: str, by: "tuple[By, ...]", budget: int | None, as_json: bool) -> int:
    """Search a better harness for an agent; if its gain is confirmed, write it as a proposal.

    Recorded prompts are answered through the gateway, by the models of the agent. Exit status 1: nothing was found.
    """
    from stepstream.cli import compacted_topics
    from stepstream.embedded.stack import ensure_broker
    from stepstream.services.control.optimise.propose import propose_version
    from stepstream.services.control.optimise.records import Budget, Meter
    from stepstream.services.control.optimise.shadow import ReplayUnavailable
    from stepstream.topics.ids import new_event_id, now_us

    with ensure_broker(load(), lambda line: click.echo(line, err=True)) as settings:
        records = compacted_topics.read(settings, HARNESSES)
        versions = harnesses.versions_of(records.values(), tenant, agent)
        meter = Meter(Budget(budget or settings.optimise.calls, settings.optimise.tokens))
        try:
            found = propose_version(settings, versions, tenant, agent, by, meter)
        except ReplayUnavailable as error:
            raise click.ClickException(str(error)) from None
        if found.record is not None:
            identity = {"event_id": new_event_id(), "occurred_at_us": now_us(), "author": getpass.getuser()}
            record = cast(Harness, {**found.record, **identity})
            compacted_topics.write(settings, HARNESSES, harnesses.record_key(tenant, agent, record["version"]), record)
    _print(agent, found, as_json)
    return 0 if found.record is not None else 1


def _print(agent: str, found: "Search", as_json: bool) -> None:
    record = found.record
    if as_json:
        row = {"version": record and record["version"], "headroom": record and record["headroom"]}
        counts = {"trajectories": found.attempts, "calls": found.calls, "tokens": found.tokens}
        click.echo(orjson.dumps(row | {"reason": found.reason} | counts).decode())
        return
    spent = f"{found.attempts} trajectories, {found.calls} calls, {found.tokens} tokens"
    if record is None:
        click.echo(f"{agent}: nothing to propose: {found.reason} ({spent})")
    else:
        click.echo(f"{agent}: version {record['version']} is proposed: {found.reason} ({spent})")
