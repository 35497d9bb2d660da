"""`stepstream dead-letters`: list rejected records, show one, and send them again after a mend."""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import click
import orjson

from stepstream.config import Settings, load
from stepstream.embedded.addresses import resolve_addresses

_UNREACHABLE = 3
Command = TypeVar("Command", bound=Callable[..., Any])


def _filters(command: Command) -> Command:
    for name, text in reversed(
        (
            ("--tenant", "Only this tenant's. Letters without a tenant are left out."),
            ("--topic", "Only records of this topic."),
            ("--job", "Only letters of this job, as `govern`."),
            ("--error", "Only this error class, as `unknown_schema`."),
            ("--reason", "Only letters whose reason contains this text."),
        )
    ):
        command = click.option(name, default="", help=text)(command)
    return command


@click.group("dead-letters")
def dead_letters() -> None:
    """Records that jobs and services rejected."""


@dead_letters.command("list")
@_filters
@click.option("--all", "with_redriven", is_flag=True, help="Include letters whose record was sent again.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(min=1), help="Newest letters to print.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_letters(with_redriven: bool, limit: int, as_json: bool, **filters: str) -> None:
    """List dead letters, oldest first."""
    letters = _read(_settings())
    found = letters.select(_filter(filters), with_redriven=with_redriven)
    rows = [_row(letter, letters.redriven) for letter in found[-limit:]]
    if as_json:
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    for row in rows:
        position = f"{row['topic']}[{row['partition']}]@{row['offset']}"
        state = "redriven" if row["redriven"] else ""
        click.echo(f"{row['id']}  {position:<32} {row['tenant'] or '-':<12} {row['error']:<18} {row['reason']} {state}")
    click.echo(f"{len(rows)} of {len(found)} dead letters", err=True)


@dead_letters.command("show")
@click.argument("letter_id")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(letter_id: str, as_json: bool) -> None:
    """Show one dead letter. Exit status 1: there is none of this id."""
    letters = _read(_settings())
    if letter_id not in letters.rejected:
        raise click.ClickException(f"there is no dead letter {letter_id}: see `stepstream dead-letters list --all`")
    row = _row(letters.rejected[letter_id], letters.redriven)
    if as_json:
        click.echo(orjson.dumps(row, option=orjson.OPT_INDENT_2).decode())
        return
    for name, value in row.items():
        click.echo(f"{name:<16} {'-' if value is None else value}")


@dead_letters.command("redrive")
@click.argument("letter_ids", nargs=-1)
@_filters
@click.option("--all", "everything", is_flag=True, help="All letters, without ids and filters.")
@click.option("--again", is_flag=True, help="Include letters whose record was sent again already.")
@click.option("--dry-run", is_flag=True, help="Check that the records can be read; send nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def redrive(
    letter_ids: tuple[str, ...], everything: bool, again: bool, dry_run: bool, as_json: bool, **filters: str
) -> None:
    """Send the records of dead letters again. They keep their ids, so each takes effect once.

    Exit status 0: all were sent, or none was left to send; 1: some cannot be sent, as the output lists, or an id is
    unknown; 3: a part does not answer. After an interruption run it again.
    """
    from confluent_kafka import KafkaException

    from stepstream.jobs.dead_letters import redrive as redriving
    from stepstream.topics.producer import DeliveryFailed

    if not (letter_ids or everything or any(filters.values())):
        raise click.UsageError("name dead letters, give a filter, or --all")
    settings = _settings()
    letters = _read(settings)
    if unknown := sorted(set(letter_ids) - letters.rejected.keys()):
        raise click.ClickException(f"there is no dead letter {', '.join(unknown)}: see `stepstream dead-letters list`")
    found = letters.select(_filter(filters, letter_ids), with_redriven=again)
    try:
        results = redriving.redrive(settings, found, dry_run=dry_run)
    except (KafkaException, DeliveryFailed) as error:
        click.echo(f"stepstream: {error}; run it again", err=True)
        sys.exit(_UNREACHABLE)
    faults = {result.letter["event_id"]: result.fault for result in results if result.fault is not None}
    sent = Counter(result.letter["topic"] for result in results if result.fault is None)
    if as_json:
        click.echo(orjson.dumps({"sent": sent, "not_sent": faults, "dry_run": dry_run}).decode())
    else:
        verb = "would send" if dry_run else "sent"
        click.echo(
            f"{verb} {sent.total()} records again: {', '.join(f'{n} of {t}' for t, n in sent.items()) or 'none'}"
        )
        for letter_id, fault in faults.items():
            click.echo(f"stepstream: {letter_id}: {fault}", err=True)
    if faults:
        sys.exit(1)


def _settings() -> Settings:
    from stepstream.topics.client import wait_for_kafka

    settings = resolve_addresses(load())
    wait_for_kafka(settings.kafka)
    return settings


def _read(settings: Settings) -> Any:
    from stepstream.jobs.dead_letters.redrive import read_letters

    return read_letters(settings)


def _filter(filters: dict[str, str], letter_ids: tuple[str, ...] = ()) -> Any:
    from stepstream.jobs.dead_letters.letters import LetterFilter

    return LetterFilter(ids=frozenset(letter_ids), **filters)


def _row(letter: Any, redriven: set[str]) -> dict[str, Any]:
    names = ("occurred_at_us", "job", "topic", "partition", "offset", "tenant", "error", "reason", "value_bytes")
    key = None if letter["key"] is None else letter["key"].decode(errors="replace")
    facts = {name: letter[name] for name in (*names, "value_sha256")}
    return {"id": letter["event_id"], **facts, "key": key, "redriven": letter["event_id"] in redriven}
