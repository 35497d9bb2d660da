"""`stepstream replay`: govern past records again under the current policies."""

import time
from dataclasses import asdict
from datetime import UTC, datetime

import click
import orjson

from stepstream.config import load
from stepstream.embedded.addresses import resolve_addresses
from stepstream.topics.catalogue import FEEDBACK, GOVERNED_FEEDBACK, GOVERNED_STEPS, STEPS

_SOURCES = (STEPS, FEEDBACK, GOVERNED_STEPS, GOVERNED_FEEDBACK)
_INTO = (GOVERNED_STEPS, GOVERNED_FEEDBACK)
_PROGRESS_INTERVAL_S = 2.0


class ReplayBoundParam(click.ParamType[tuple[int | None, int | None]]):
    """A time (ISO 8601; UTC by default) or an offset."""

    name = "TIME|OFFSET"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        """Return (time in milliseconds, offset); one of them is None."""
        text = str(value)
        if text.isdigit():
            return None, int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"'{text}' is neither an offset nor a time like 2026-11-21T08:00", param, ctx)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1000), None


@click.command()
@click.option("--topic", type=click.Choice(_SOURCES), required=True, help="Topic to read.")
@click.option("--from", "begin", type=ReplayBoundParam(), help="Begin of the range; default: the topic's.")
@click.option("--to", "end", type=ReplayBoundParam(), help="End of the range; default: the topic's current end.")
@click.option("--into", type=click.Choice(_INTO), required=True, help="Governed topic of --topic, for the results.")
@click.option("--dry-run", is_flag=True, help="Only count what a replay would do.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as an object.")
def replay(
    topic: str,
    begin: tuple[int | None, int | None] | None,
    end: tuple[int | None, int | None] | None,
    into: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Govern past records again under the current policies, which makes new revisions.

    Records already governed under the current version of their tenant's policy are skipped, so a second run does
    nothing. If the raw topic has expired, read the governed one: text that an earlier policy removed stays removed.
    """
    from stepstream.jobs.governance.active_policy import CannotGovern
    from stepstream.jobs.governance.replay import OUTPUT_TOPICS, CannotReplayError, ReplayBound, replay
    from stepstream.topics.client import wait_for_kafka

    if OUTPUT_TOPICS[topic] != into:
        raise click.UsageError(f"--into {into} does not fit --topic {topic}: use --into {OUTPUT_TOPICS[topic]}")
    settings = resolve_addresses(load())
    wait_for_kafka(settings.kafka)
    printed_at = time.monotonic()

    def print_progress(done: int, size: int) -> None:
        nonlocal printed_at
        if time.monotonic() - printed_at > _PROGRESS_INTERVAL_S:
            printed_at = time.monotonic()
            click.echo(f"{done} of {size} records", err=True)

    first, last = (ReplayBound(*(bound or (None, None))) for bound in (begin, end))
    try:
        tally = replay(settings, topic, first, last, dry_run=dry_run, progress=print_progress)
    except (CannotReplayError, CannotGovern) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(orjson.dumps(asdict(tally), option=orjson.OPT_INDENT_2).decode())
        return
    click.echo(
        f"{tally.read} records read: {tally.governed} {'would be governed' if dry_run else 'governed'} again "
        f"({tally.trainable} trainable), {tally.known} already governed under this version, {tally.withheld} withheld, "
        f"{tally.superseded} duplicates or older results, {tally.refused} invalid"
    )
    for rule, times in sorted(tally.rules.items()):
        click.echo(f"  {rule}: {times}")
