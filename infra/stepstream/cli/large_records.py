"""`stepstream large-records`: remove objects that no record names."""

from datetime import UTC, datetime, timedelta

import click
import orjson

from stepstream.config import load
from stepstream.embedded.addresses import resolve_addresses


@click.group("large-records")
def large_records() -> None:
    """Objects with the content of records that are too large for Kafka."""


@large_records.command("sweep")
@click.option(
    "--older-than",
    "days",
    default=7,
    show_default=True,
    type=click.IntRange(min=1),
    help="Days since the object was written. A producer may hold a younger one's record in its spool.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def sweep(days: int, dry_run: bool, as_json: bool) -> None:
    """Remove the objects that no record on the log names.

    Their records were deleted by the retention of a topic or by an erasure, or were never sent. Reads all topics whose
    records may be large.
    """
    from stepstream.jobs.erasure.content_objects import remove_objects, unnamed_objects
    from stepstream.topics.client import wait_for_kafka

    settings = resolve_addresses(load())
    wait_for_kafka(settings.kafka)
    try:
        # An object of the oldest kept day may be written at its end.
        paths = unnamed_objects(settings, datetime.now(UTC).date() - timedelta(days=days))
        if not dry_run:
            remove_objects(settings, paths)
    except OSError as error:
        raise click.ClickException(f"{settings.large_records.store or 'the store of large records'}: {error}") from None
    if as_json:
        click.echo(orjson.dumps({"removed": paths, "dry_run": dry_run}).decode())
    else:
        click.echo(f"{'would remove' if dry_run else 'removed'} {len(paths)} objects that no record names")
