"""`stepstream replay`: governs history anew, under the policies of now."""

import time
from dataclasses import asdict
from datetime import UTC, datetime

import click
import orjson

from stepstream.config import load
from stepstream.embedded.addresses import wire

_SOURCES = ("steps", "feedback", "governed-steps", "governed-feedback")
_INTO = ("governed-steps", "governed-feedback")
_TOLD_EVERY_S = 2.0


class Where(click.ParamType[tuple[int | None, int | None]]):
    """A time (ISO 8601; UTC where it names no zone) or an offset."""

    name = "TIME|OFFSET"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        """(time in milliseconds, offset), one of them None."""
        text = str(value)
        if text.isdigit():
            return None, int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"'{text}' is neither an offset nor a time as 2026-11-21T08:00", param, ctx)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1000), None


@click.command()
@click.option("--topic", type=click.Choice(_SOURCES), required=True, help="What is read.")
@click.option("--from", "begin", type=Where(), help="Where it begins; default: the topic's beginning.")
@click.option("--to", "end", type=Where(), help="Where it ends; default: the topic's end as of now.")
@click.option("--into", type=click.Choice(_INTO), required=True, help="Where results go: the governed topic of it.")
@click.option("--dry-run", is_flag=True, help="Count what would be done, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as an object.")
def replay(
    topic: str,
    begin: tuple[int | None, int | None] | None,
    end: tuple[int | None, int | None] | None,
    into: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Govern history anew under the policies of now, into new revisions.

    What was governed under the present version of its tenant's policy is passed over, so a second run does nothing.
    Where the raw topic is gone, read the governed one: what an earlier policy took out stays out.
    """
    from stepstream.jobs.governance.active_policy import CannotGovern
    from stepstream.jobs.governance.replay import INTO, CannotReplayError, ReplayBound, replay
    from stepstream.topics.client import wait_for_kafka

    if INTO[topic] != into:
        raise click.UsageError(f"{topic} is governed into {INTO[topic]}, not into {into}")
    settings = wire(load())
    wait_for_kafka(settings.kafka)
    told = time.monotonic()

    def progress(done: int, size: int) -> None:
        nonlocal told
        if time.monotonic() - told > _TOLD_EVERY_S:
            told = time.monotonic()
            click.echo(f"{done} of {size} records", err=True)

    first, last = (ReplayBound(*(place or (None, None))) for place in (begin, end))
    try:
        tally = replay(settings, topic, first, last, dry_run=dry_run, progress=progress)
    except (CannotReplayError, CannotGovern) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(orjson.dumps(asdict(tally), option=orjson.OPT_INDENT_2).decode())
        return
    click.echo(
        f"{tally.read} records read: {tally.governed} {'would be governed' if dry_run else 'governed'} anew "
        f"({tally.trainable} trainable), {tally.known} were under this version already, {tally.withheld} withheld, "
        f"{tally.superseded} copies or older results, {tally.refused} not usable"
    )
    for rule, times in sorted(tally.rules.items()):
        click.echo(f"  {rule}: {times}")
