"""`stepstream quarantine`: list trajectories held out of training; release or hold trajectories by hand."""

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import orjson

from stepstream.config import load
from stepstream.embedded.addresses import resolve_addresses
from stepstream.topics.catalogue import CURATION
from stepstream.topics.ids import DEFAULT_TENANT

BY = click.option(
    "--by", default=getpass.getuser, show_default="your user name", help="Name of the person who decides."
)
TENANT = click.option("--tenant", default=DEFAULT_TENANT, show_default=True, help="Tenant of the trajectories.")
FLUSH_TIMEOUT_S = 30.0


@click.group()
def quarantine() -> None:
    """Trajectories held out of training."""


@quarantine.command("list")
@click.option("--tenant", help="List only this tenant's.")
@click.option("--reason", help="List only those with a reason that begins with this, as `near_duplicate`.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(min=1), help="Maximum number of rows.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_held(tenant: str | None, reason: str | None, limit: int, as_json: bool) -> None:
    """List held trajectories and the reasons, newest first."""
    rows = list(_held_rows(tenant or "", reason or "", limit))
    if as_json:
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    for row in rows:
        click.echo(f"{row['trajectory_id']:40} {row['tenant']:12} {row['agent']:16} {', '.join(row['reasons'])}")
    if not rows:
        click.echo("no trajectory is held")


@quarantine.command()
@click.argument("trajectory_ids", nargs=-1, required=True)
@TENANT
@BY
def release(trajectory_ids: tuple[str, ...], tenant: str, by: str) -> None:
    """Release trajectories for training, for any reason of the hold; consent and redaction stay in force."""
    _decide("release", tenant, trajectory_ids, "by_hand", by)


@quarantine.command()
@click.argument("trajectory_ids", nargs=-1, required=True)
@click.option("--reason", default="by_hand", show_default=True, help="Reason of the hold.")
@TENANT
@BY
def hold(trajectory_ids: tuple[str, ...], reason: str, tenant: str, by: str) -> None:
    """Hold trajectories out of training."""
    _decide("hold", tenant, trajectory_ids, reason, by)


def _held_rows(tenant: str, reason: str, limit: int) -> Iterator[dict[str, Any]]:
    """Yield rows of the view `quarantine`."""
    with _store() as client:
        result = client.query(
            "SELECT trajectory_id, tenant, agent, group_id, ended_at, success, steps, revision, reasons, by, "
            "decided_at FROM quarantine WHERE (tenant = {tenant:String} OR {tenant:String} = '') "
            "AND arrayExists(reason -> startsWith(reason, {reason:String}), reasons) "
            "ORDER BY ended_at DESC, trajectory_id LIMIT {limit:UInt32}",
            parameters={"tenant": tenant, "reason": reason, "limit": limit},
        )
        yield from result.named_results()


@contextmanager
def _store() -> Iterator[Any]:
    from stepstream.jobs.clickhouse.connection import connect

    settings = resolve_addresses(load())
    client = connect(settings, database=settings.clickhouse.database, reads_only=True)
    try:
        yield client
    finally:
        client.close()


def _decide(action: str, tenant: str, trajectory_ids: tuple[str, ...], reason: str, by: str) -> None:
    """Write decisions to the log; block until Kafka has acknowledged them."""
    from stepstream.topics.client import wait_for_kafka
    from stepstream.topics.codec import Codec
    from stepstream.topics.events import new_curation
    from stepstream.topics.ids import new_event_id, now_us
    from stepstream.topics.producer import EventProducer

    settings = resolve_addresses(load())
    wait_for_kafka(settings.kafka)
    codec = Codec(settings)
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
                tenant=tenant,
            )
            producer.send(CURATION, name, decision)
        producer.flush(FLUSH_TIMEOUT_S)
    finally:
        codec.close()
    click.echo(f"{action}: {len(trajectory_ids)} trajectories, by {by}; `label` publishes their next revision")
    for name in _unknown(tenant, trajectory_ids):
        click.echo(f"no label of {name} of tenant {tenant} is in the tables: check both", err=True)


def _unknown(tenant: str, trajectory_ids: tuple[str, ...]) -> list[str]:
    """Return the trajectories without a label in ClickHouse; none if ClickHouse is not available."""
    try:
        from clickhouse_connect.driver.exceptions import ClickHouseError

        from stepstream.jobs.clickhouse.connection import StoreUnavailableError
    except ModuleNotFoundError:
        return []
    try:
        with _store() as client:
            result = client.query(
                "SELECT DISTINCT trajectory_id FROM trajectories "
                "WHERE tenant = {tenant:String} AND trajectory_id IN {ids:Array(String)}",
                parameters={"tenant": tenant, "ids": list(trajectory_ids)},
            )
    except (ClickHouseError, StoreUnavailableError):
        return []
    labelled = {row[0] for row in result.result_rows}
    return [name for name in trajectory_ids if name not in labelled]
