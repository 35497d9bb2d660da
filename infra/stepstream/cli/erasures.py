"""`stepstream erasures`: list the proofs of erasures, show one, keep the index by person, and rewrite hidden rows."""

import sys
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import click
import orjson

from stepstream.config import load
from stepstream.embedded.addresses import resolve_addresses
from stepstream.topics.catalogue import ERASURE_PROOFS

_UNREACHABLE = 3


@click.group()
def erasures() -> None:
    """Proofs of what `stepstream erase` removed and left, its index, and the rows that it hid."""


@erasures.command("list")
@click.option("--tenant", help="Only this tenant.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_erasures(tenant: str | None, as_json: bool) -> None:
    """List the finished erasures, oldest first."""
    proofs = [proof for proof in _read() if tenant in (None, proof["tenant"])]
    if as_json:
        click.echo(_json(proofs))
        return
    for proof in proofs:
        click.echo(f"{proof['request_id']}  {_time(proof['occurred_at_us'])}  {proof['tenant']:<16} {_summary(proof)}")
    if not proofs:
        click.echo("no erasure is finished")


@erasures.command("show")
@click.argument("identity", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def show_erasure(identity: str, as_json: bool) -> None:
    """Show the proof of a request, or all of a person, by the request's id or the person's digest.

    `erase` prints both. Exit status 1: there is none.
    """
    proofs = [proof for proof in _read() if identity in (proof["request_id"], proof["subject"])]
    if not proofs:
        raise click.ClickException(f"no finished erasure has request id or subject {identity}")
    if as_json:
        click.echo(_json(proofs))
        return
    for proof in proofs:
        _print(proof)


@erasures.command("index")
def index_persons() -> None:
    """Add the newest records to the index by person, so that the next `erase` need not read them.

    Run it each night. Exit status 1: there is no master key; 3: a part does not answer.
    """
    from clickhouse_connect.driver.exceptions import ClickHouseError

    from stepstream.jobs.clickhouse.connection import StoreUnavailableError, connect
    from stepstream.jobs.erasure import erase
    from stepstream.topics.client import wait_for_kafka

    settings = resolve_addresses(load())
    wait_for_kafka(settings.kafka)
    try:
        with closing(connect(settings, database=settings.clickhouse.database)) as client:
            erase.update_person_index(settings, client, lambda line: click.echo(line, err=True))
    except (StoreUnavailableError, ClickHouseError) as error:
        click.echo(f"stepstream: {error}", err=True)
        sys.exit(_UNREACHABLE)
    except erase.CannotErase as error:
        raise click.ClickException(str(error)) from None


@erasures.command("rewrite")
@click.option("--json", "as_json", is_flag=True, help="Print the number of rewritten parts by table, as an object.")
def rewrite_parts(as_json: bool) -> None:
    """Rewrite the store's parts that hold hidden rows of erased persons now, and wait for the end.

    The sink does so every `store.rewrite_hours`. The replaced parts leave the disk within eight minutes. Exit status
    3: the store does not answer.
    """
    from clickhouse_connect.driver.exceptions import ClickHouseError

    from stepstream.jobs.clickhouse import hidden_rows
    from stepstream.jobs.clickhouse.connection import StoreUnavailableError, connect

    settings = resolve_addresses(load())
    try:
        with closing(connect(settings, database=settings.clickhouse.database)) as client:
            rewritten = hidden_rows.rewrite(client, lambda line: click.echo(line, err=True))
    except (StoreUnavailableError, ClickHouseError) as error:
        click.echo(f"stepstream: {error}", err=True)
        sys.exit(_UNREACHABLE)
    if as_json:
        click.echo(_json({"parts": rewritten}))
    else:
        click.echo("\n".join(f"{table}: {parts} parts" for table, parts in rewritten.items()) or "no rows are hidden")


def _print(proof: Any) -> None:
    click.echo(f"request   {proof['request_id']} by {proof['requested_by']}, {_time(proof['requested_at_us'])}")
    click.echo(f"subject   {proof['subject']} of tenant {proof['tenant']}")
    click.echo(f"finished  {_time(proof['occurred_at_us'])}, release {proof['version']}")
    click.echo(f"erased    all events until {_time(proof['erased_until_us'])}: {_summary(proof)}")
    for name, title in (("made_unreadable", "unreadable"), ("deleted", "deleted")):
        for one in proof[name]:
            place = f"{one['topic']}[{one['partition']}] {one['first_offset']} to {one['last_offset']}"
            click.echo(f"  {title:<11} {place}: {one['records']} of the person's records")
    for table, rows in sorted(proof["rows_deleted"].items()):
        click.echo(f"  {'rows':<11} {table}: {rows}")
    for one in proof["remaining"]:
        unit = "rows" if one["place"] == "store" else "records"
        records = "" if one["records"] is None else f" ({one['records']} {unit})"
        until = "" if one["until_us"] is None else f", until {_time(one['until_us'])}"
        click.echo(f"  {'remaining':<11} {one['place']}{records}{until}: {one['reason']}")


def _summary(proof: Any) -> str:
    unreadable, deleted = (sum(one["records"] for one in proof[name]) for name in ("made_unreadable", "deleted"))
    rows = sum(proof["rows_deleted"].values())
    return (
        f"{unreadable} records unreadable, {deleted} deleted, {rows} rows, {proof['objects_removed']} objects, "
        f"{proof['keys_destroyed']} keys"
    )


def _read() -> list[Any]:
    from stepstream.cli import compacted_topics
    from stepstream.embedded.stack import ensure_broker

    with ensure_broker(load(), lambda line: click.echo(line, err=True)) as settings:
        proofs = compacted_topics.read(settings, ERASURE_PROOFS).values()
    return sorted(proofs, key=lambda proof: (proof["occurred_at_us"], proof["request_id"]))


def _time(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(sep=" ", timespec="seconds")


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
