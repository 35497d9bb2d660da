"""`stepstream keys`: create, list and revoke API keys of the gateway."""

from contextlib import AbstractContextManager
from typing import Any

import click
import orjson

from stepstream.config import Settings, load
from stepstream.topics.catalogue import API_KEYS

# The same as in services/gateway/api_keys.py, which the command imports only when it runs.
_DEFAULT_SCOPES = ("calls", "feedback", "otlp")
_SCOPES = (*_DEFAULT_SCOPES, "verdicts")


@click.group()
def keys() -> None:
    """API keys of the gateway, each for one tenant and some scopes."""


@keys.command("create")
@click.option("--tenant", required=True, help="Tenant of all calls with the key.")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(_SCOPES),
    multiple=True,
    help="Permission (repeatable); default: all but verdicts.",
)
@click.option("--note", default="", help="Purpose of the key.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def create(tenant: str, scopes: tuple[str, ...], note: str, as_json: bool) -> None:
    """Create a key and print it once; the log stores only its digest."""
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
        scopes=list(scopes or _DEFAULT_SCOPES),
        note=note,
    )
    with _log() as settings:
        _publish(settings, record)
    if as_json:
        click.echo(orjson.dumps(_row(record) | {"key": key}).decode())
        return
    click.echo(key)
    click.echo(
        f"key {key_id} of tenant {tenant} for {', '.join(record['scopes'])}; save it, it cannot be printed again",
        err=True,
    )


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_keys(as_json: bool) -> None:
    """List the keys, without their secrets."""
    with _log() as settings:
        rows = [_row(record) for _, record in sorted(_read_keys(settings).items())]
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
    """Revoke a key: gateways reject it from now on."""
    from stepstream.topics.ids import new_event_id, now_us

    with _log() as settings:
        record = _read_keys(settings).get(key_id)
        if record is None:
            raise click.ClickException(f"there is no key {key_id}: see `stepstream keys list`")
        record |= {"event_id": new_event_id(), "occurred_at_us": now_us(), "revoked": True}
        _publish(settings, record)
    click.echo(orjson.dumps(_row(record)).decode() if as_json else f"revoked {key_id}")


def _read_keys(settings: Settings) -> dict[str, Any]:
    from stepstream.cli import compacted_topics

    return compacted_topics.read(settings, API_KEYS)


def _publish(settings: Settings, record: Any) -> None:
    from stepstream.cli import compacted_topics

    compacted_topics.write(settings, API_KEYS, record["key_id"], record)


def _row(record: Any) -> dict[str, Any]:
    return {name: record[name] for name in ("key_id", "tenant", "scopes", "note", "revoked", "occurred_at_us")}


def _log() -> AbstractContextManager[Settings]:
    """Start the broker if it is down, reporting that on standard error."""
    from stepstream.embedded.stack import ensure_broker

    return ensure_broker(load(), lambda line: click.echo(line, err=True))
