"""`stepstream explain`: where a trajectory is on its way into a model, and why it was or was not trained on."""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
import orjson

from stepstream.config import load
from stepstream.embedded.addresses import wire

if TYPE_CHECKING:
    from stepstream.cli.trajectory_status import Facts, Row, TrajectoryStatus

UNKNOWN = 1


@click.command()
@click.argument("trajectory")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def explain(trajectory: str, as_json: bool) -> None:
    """Tell where TRAJECTORY is, whether a learner trained on it, and if not, why not and what would change it.

    The analytics store is asked, which is seconds behind the log. Exit status 1: nothing is known of it.
    """
    from clickhouse_connect.driver.exceptions import ClickHouseError

    from stepstream.cli.trajectory_queries import facts_of
    from stepstream.cli.trajectory_status import standing_of
    from stepstream.jobs.clickhouse.connection import connect

    settings = wire(load())
    with connect(settings.clickhouse, database=settings.clickhouse.database) as client:
        try:
            facts = facts_of(client, trajectory)
        except ClickHouseError as error:
            raise click.ClickException(
                f"the store cannot tell: {str(error).splitlines()[0][:200]}; `stepstream store migrate` brings its "
                "tables up to date"
            ) from None
    standing = standing_of(facts, settings.label, settings.learner)
    if as_json:
        answer = {"trajectory_id": trajectory, **asdict(standing), **asdict(facts)}
        click.echo(orjson.dumps(answer, option=orjson.OPT_INDENT_2).decode())
    else:
        for line in _lines(trajectory, facts, standing):
            click.echo(line)
    sys.exit(UNKNOWN if standing.state == "unknown" else 0)


def _lines(trajectory: str, facts: "Facts", standing: "TrajectoryStatus") -> Iterator[str]:
    from stepstream.cli.trajectory_status import staleness_of

    yield f"{trajectory}: {standing.state.replace('_', ' ')}"
    yield f"why          {standing.why}"
    if standing.would_change_it:
        yield f"would change {standing.would_change_it}"
    steps, label = facts.steps, facts.label
    if steps["count"]:
        yield (
            f"steps        {steps['count']}, {steps['trainable']} of them trainable, {steps['first_at']:%F %T} to "
            f"{steps['last_at']:%F %T} UTC, end {'told' if steps['ended'] else 'not told'}"
        )
    if steps["flags"]:
        yield f"flags        {', '.join(steps['flags'])}"
    for row in facts.audit:
        yield f"governance   {row['action']} {row['records']} of {row['source_topic']} {_counts(row['finds'])}".rstrip()
    for row in facts.feedback:
        gone = ", taken back" if row["retracted"] else ""
        value = "" if row["value"] is None else f" {row['value']}"
        yield f"feedback     {row['name']}{value} from {row['source']}{_shown(row)}{gone}"
    for row in facts.curation:
        yield f"curation     {row['action']} by {row['by']}: {row['reason']}"
    if label is not None:
        oldest, newest = label["version_min"], label["version_max"]
        sampled = label["model"] or "nobody of ours"
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
        paid = f"{row['value']:g} pays {row['paid']:g}" + ("" if row["final"] else ", may still change")
        yield f"reward       {row['name']} ({row['kind']}, {row['source']}): {paid}"
    if facts.group["labelled"] or facts.group["open"]:
        yield f"group        {facts.group['labelled']} attempts labelled, {facts.group['open']} open"
    for row in facts.decisions:
        if row["outcome"] == "trained":
            yield (
                f"learner      revision {row['revision']} trained on in update {row['update']}, part of "
                f"{row['model']}@{row['checkpoint_version']}{staleness_of(row)}"
            )
        else:
            yield (
                f"learner      revision {row['revision']} dropped by {row['model']} at version "
                f"{row['learner_version']}: {row['reason']}"
            )


def _shown(feedback: "Row") -> str:
    """What a signal demonstrates."""
    if not feedback["demonstrates"]:
        return ""
    step = feedback["step_index"]
    return f", demonstrates {'the last response' if step is None else f'the response of step {step}'}"


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{rule} {count}" for rule, count in sorted(found.items()))
