"""`stepstream quarantine`: trajectories that are held out of training, and the decisions of people about them."""

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import orjson

from stepstream.config import load
from stepstream.embedded.addresses import wire

BY = click.option("--by", default=getpass.getuser, show_default="your user name", help="Who decides.")
DELIVERED_S = 30.0


@click.group()
def quarantine() -> None:
    """Trajectories that are held out of training."""


@quarantine.command("list")
@click.option("--tenant", help="Only those of one tenant.")
@click.option("--reason", help="Only those held for a reason that begins with this, as `near_duplicate`.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(min=1), help="Most that are shown.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_held(tenant: str | None, reason: str | None, limit: int, as_json: bool) -> None:
    """Show what is held and why, the newest first."""
    held = list(_held(tenant or "", reason or "", limit))
    if as_json:
        click.echo(orjson.dumps(held, option=orjson.OPT_INDENT_2).decode())
        return
    for row in held:
        click.echo(f"{row['trajectory_id']:40} {row['tenant']:12} {row['agent']:16} {', '.join(row['reasons'])}")
    if not held:
        click.echo("nothing is held")


@quarantine.command()
@click.argument("trajectory_ids", nargs=-1, required=True)
@BY
def release(trajectory_ids: tuple[str, ...], by: str) -> None:
    """Let trajectories in again, whatever held them; consent and redaction stay as they are."""
    _decide("release", trajectory_ids, "by_hand", by)


@quarantine.command()
@click.argument("trajectory_ids", nargs=-1, required=True)
@click.option("--reason", default="by_hand", show_default=True, help="Why.")
@BY
def hold(trajectory_ids: tuple[str, ...], reason: str, by: str) -> None:
    """Keep trajectories out of training."""
    _decide("hold", trajectory_ids, reason, by)


def _held(tenant: str, reason: str, limit: int) -> Iterator[dict[str, Any]]:
    """Rows of the view `quarantine`, as plain values."""
    with _store() as client:
        found = client.query(
            "SELECT trajectory_id, tenant, agent, group_id, ended_at, success, steps, revision, reasons, by, "
            "decided_at FROM quarantine WHERE (tenant = {tenant:String} OR {tenant:String} = '') "
            "AND arrayExists(reason -> startsWith(reason, {reason:String}), reasons) "
            "ORDER BY ended_at DESC, trajectory_id LIMIT {limit:UInt32}",
            parameters={"tenant": tenant, "reason": reason, "limit": limit},
        )
        yield from found.named_results()


@contextmanager
def _store() -> Iterator[Any]:
    from stepstream.jobs.clickhouse.connection import connect

    settings = wire(load()).clickhouse
    client = connect(settings, database=settings.database)
    try:
        yield client
    finally:
        client.close()


def _decide(action: str, trajectory_ids: tuple[str, ...], reason: str, by: str) -> None:
    """Writes decisions to the log; returns when Kafka has them."""
    from stepstream.topics.client import wait_for_kafka
    from stepstream.topics.codec import Codec
    from stepstream.topics.events import new_curation
    from stepstream.topics.ids import new_event_id, now_us
    from stepstream.topics.producer import EventProducer

    settings = wire(load())
    wait_for_kafka(settings.kafka)
    codec = Codec(settings.schema_registry)
    try:
        producer = EventProducer(settings.kafka, codec, "cli", linger_ms=0)
        for name in trajectory_ids:
            decision = new_curation(
                event_id=new_event_id(),
                occurred_at_us=now_us(),
                trajectory_id=name,
                action=action,
                reason=reason,
                by=by,
            )
            producer.send("curation", name, decision)
        producer.flush(DELIVERED_S)
    finally:
        codec.close()
    click.echo(f"{action}: {len(trajectory_ids)} trajectories, by {by}; `label` publishes their next revision")
    for name in _unknown(trajectory_ids):
        click.echo(f"no label of {name} is in the tables: is it the right id?", err=True)


def _unknown(trajectory_ids: tuple[str, ...]) -> list[str]:
    """Those that ClickHouse has no label of; none where it cannot be asked, which is not needed to decide."""
    try:
        from clickhouse_connect.driver.exceptions import ClickHouseError

        from stepstream.jobs.clickhouse.connection import StoreUnavailableError
    except ModuleNotFoundError:
        return []
    try:
        with _store() as client:
            found = client.query(
                "SELECT DISTINCT trajectory_id FROM trajectories WHERE trajectory_id IN {ids:Array(String)}",
                parameters={"ids": list(trajectory_ids)},
            )
    except (ClickHouseError, StoreUnavailableError):
        return []
    known = {row[0] for row in found.result_rows}
    return [name for name in trajectory_ids if name not in known]
