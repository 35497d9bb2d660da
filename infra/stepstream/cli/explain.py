"""`stepstream explain`: report a trajectory's stage, whether a learner trained on it, and why."""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
import orjson

from stepstream.config import load
from stepstream.embedded.addresses import resolve_addresses
from stepstream.topics.ids import DEFAULT_TENANT

if TYPE_CHECKING:
    from stepstream.services.console.trajectories.status import Facts, Row, TrajectoryStatus

UNKNOWN = 1


@click.command()
@click.argument("trajectory")
@click.option("--tenant", default=DEFAULT_TENANT, show_default=True, help="Tenant of the trajectory.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def explain(trajectory: str, tenant: str, as_json: bool) -> None:
    """Explain whether a learner trained on TRAJECTORY, and if not, why not and what would change that.

    The answer comes from the store, which is seconds behind the log. Exit status 1: the trajectory is unknown.
    """
    from clickhouse_connect.driver.exceptions import ClickHouseError

    from stepstream.jobs.clickhouse.connection import connect
    from stepstream.services.console.trajectories.facts import facts_of, tenants_of
    from stepstream.services.console.trajectories.status import status_of

    settings = resolve_addresses(load())
    with connect(settings, database=settings.clickhouse.database, reads_only=True) as client:

        def query(sql: str, **parameters: str) -> list[dict[str, Any]]:
            return list(client.query(sql, parameters=parameters).named_results())

        try:
            facts = facts_of(query, tenant, trajectory)
            status = status_of(facts, settings.label, settings.learner)
            others = tenants_of(query, trajectory) if status.state == "unknown" else []
        except ClickHouseError as error:
            raise click.ClickException(
                f"the store rejects a query: {str(error).splitlines()[0][:200]}; if its tables are older than this "
                "version, run `stepstream store migrate`"
            ) from None
    if as_json:
        document = {"tenant": tenant, "trajectory_id": trajectory, **asdict(status), **asdict(facts)}
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        for line in _lines(trajectory, facts, status):
            click.echo(line)
    if others:
        click.echo(f"tenant {tenant} has no such trajectory, but {', '.join(others)}: give --tenant", err=True)
    sys.exit(UNKNOWN if status.state == "unknown" else 0)


def _lines(trajectory: str, facts: "Facts", status: "TrajectoryStatus") -> Iterator[str]:
    from stepstream.services.console.trajectories.status import staleness_text

    yield f"{trajectory}: {status.state.replace('_', ' ')}"
    yield f"why          {status.why}"
    if status.would_change_it:
        yield f"would change {status.would_change_it}"
    steps, label = facts.steps, facts.label
    if steps["count"]:
        yield (
            f"steps        {steps['count']}, {steps['trainable']} of them trainable, {steps['first_at']:%F %T} to "
            f"{steps['last_at']:%F %T} UTC, end {'reported' if steps['ended'] else 'not reported'}"
        )
    if steps["flags"]:
        yield f"flags        {', '.join(steps['flags'])}"
    for row in facts.audit:
        yield f"governance   {row['action']} {row['records']} of {row['source_topic']} {_counts(row['finds'])}".rstrip()
    for row in facts.feedback:
        retracted = ", retracted" if row["retracted"] else ""
        value = "" if row["value"] is None else f" {row['value']}"
        yield f"feedback     {row['name']}{value} from {row['source']}{_demonstration_text(row)}{retracted}"
    for row in facts.curation:
        yield f"curation     {row['action']} by {row['by']}: {row['reason']}"
    if label is not None:
        oldest, newest = label["version_min"], label["version_max"]
        sampled = label["model"] or "an external policy"
        if oldest is not None:
            sampled += f"@{oldest}" + ("" if newest == oldest else f" to {newest}")
        yield (
            f"label        revision {label['revision']}, closed by {label['closed_by']}, success {label['success']}, "
            f"reward {label['reward']:g} ({label['reward_spec']}), sampled by {sampled}"
        )
        if facts.newest_version is not None and label["version_min"] is not None:
            yield f"staleness    {facts.newest_version - label['version_min']} versions now"
        if label["flags"]:
            yield f"label flags  {', '.join(label['flags'])}"
    for row in facts.components:
        reward = f"{row['value']:g}, weighted {row['paid']:g}" + ("" if row["final"] else ", not final")
        yield f"reward       {row['name']} ({row['kind']}, {row['source']}): {reward}"
    if facts.group["labelled"] or facts.group["open"]:
        yield f"group        {facts.group['labelled']} attempts labelled, {facts.group['open']} open"
    for row in facts.decisions:
        if row["outcome"] == "trained":
            yield (
                f"learner      trained on revision {row['revision']} in update {row['update']} of "
                f"{row['model']}@{row['checkpoint_version']}{staleness_text(row)}"
            )
        else:
            yield (
                f"learner      dropped revision {row['revision']} at version {row['learner_version']} of "
                f"{row['model']}: {row['reason']}"
            )


def _demonstration_text(feedback: "Row") -> str:
    """Name the response that a signal demonstrates; empty if it demonstrates none."""
    if not feedback["demonstrates"]:
        return ""
    step = feedback["step_index"]
    return f", demonstrates {'the last response' if step is None else f'the response of step {step}'}"


def _counts(finds: dict[str, int]) -> str:
    return ", ".join(f"{rule} {count}" for rule, count in sorted(finds.items()))
