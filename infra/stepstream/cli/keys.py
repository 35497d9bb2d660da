"""`stepstream keys`: API keys of the gateway."""

from contextlib import AbstractContextManager
from typing import Any

import click
import orjson

from stepstream.config import Settings, load

# As in services/gateway/credentials.py, which the command imports only when it runs.
_USUAL = ("calls", "feedback", "otlp")
_SCOPES = (*_USUAL, "verdicts")


@click.group()
def keys() -> None:
    """API keys of the gateway: whose calls it takes, and for what."""


@keys.command("create")
@click.option("--tenant", required=True, help="Tenant that calls with the key belong to.")
@click.option(
    "--scope", "scopes", type=click.Choice(_SCOPES), multiple=True, help="What it may do; default: all but verdicts."
)
@click.option("--note", default="", help="What it is for.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def create(tenant: str, scopes: tuple[str, ...], note: str, as_json: bool) -> None:
    """Make a key. It is shown this once: only a digest is kept."""
    from stepstream.services.gateway.api_keys import new_key
    from stepstream.topics.events import new_api_key
    from stepstream.topics.ids import new_event_id, now_us

    key_id, key, digest = new_key()
    record = new_api_key(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        key_id=key_id,
        digest=digest,
        tenant=tenant,
        scopes=list(scopes or _USUAL),
        note=note,
    )
    with _log() as settings:
        _publish(settings, record)
    if as_json:
        click.echo(orjson.dumps(_row(record) | {"key": key}).decode())
        return
    click.echo(key)
    click.echo(f"key {key_id} of tenant {tenant} for {', '.join(record['scopes'])}; it is not shown again", err=True)


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_keys(as_json: bool) -> None:
    """List the keys, without their secrets."""
    with _log() as settings:
        rows = [_row(record) for _, record in sorted(_known(settings).items())]
    if as_json:
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    for row in rows:
        state = "revoked" if row["revoked"] else "valid"
        click.echo(f"{row['key_id']}  {row['tenant']:<16} {state:<8} {','.join(row['scopes']):<20} {row['note']}")


@keys.command("revoke")
@click.argument("key_id")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def revoke(key_id: str, as_json: bool) -> None:
    """Withdraw a key: gateways refuse it from now on."""
    from stepstream.topics.ids import new_event_id, now_us

    with _log() as settings:
        record = _known(settings).get(key_id)
        if record is None:
            raise click.ClickException(f"there is no key {key_id}: `stepstream keys list` shows them")
        record |= {"event_id": new_event_id(), "occurred_at_us": now_us(), "revoked": True}
        _publish(settings, record)
    click.echo(orjson.dumps(_row(record)).decode() if as_json else f"revoked {key_id}")


def _known(settings: Settings) -> dict[str, Any]:
    from stepstream.cli import compacted_topics
    from stepstream.services.gateway.api_keys import TOPIC

    return compacted_topics.read(settings, TOPIC)


def _publish(settings: Settings, record: Any) -> None:
    from stepstream.cli import compacted_topics
    from stepstream.services.gateway.api_keys import TOPIC

    compacted_topics.write(settings, TOPIC, record["key_id"], record)


def _row(record: Any) -> dict[str, Any]:
    return {name: record[name] for name in ("key_id", "tenant", "scopes", "note", "revoked", "occurred_at_us")}


def _log() -> AbstractContextManager[Settings]:
    """Settings under which the log can be written; what is started for it is told on standard error."""
    from stepstream.embedded.on_demand import log_at_hand

    return log_at_hand(load(), lambda line: click.echo(line, err=True))
