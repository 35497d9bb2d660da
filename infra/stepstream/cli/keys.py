"""`stepstream keys`: create, list, change and revoke API keys of the gateway."""

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

import click
import orjson

from stepstream.config import Settings, load
from stepstream.topics.catalogue import API_KEYS, KEY_USAGE

# The same as in services/gateway/api_keys.py, which the command imports only when it runs.
_DEFAULT_SCOPES = ("calls", "feedback", "otlp")
_SCOPES = (*_DEFAULT_SCOPES, "verdicts")
_CONSENTS = ("train", "analyse", "none")
_TIMES = ("%Y-%m-%d", "%Y-%m-%dT%H:%M:%S")
_USE = ("requests", "prompt_tokens", "response_tokens", "cost_usd")


@click.group()
def keys() -> None:
    """API keys of the gateway, each for one tenant, with what it may do."""


_DECLARATIONS = (
    click.option("--model", "models", multiple=True, help="Model it may call (repeatable); * matches any characters."),
    click.option(
        "--path",
        "paths",
        multiple=True,
        help="Path below /v1/ that it may use beyond those of its scopes, as /v1/embeddings (repeatable, with *).",
    ),
    click.option("--consent", type=click.Choice(_CONSENTS), help="The most that its events may permit."),
    click.option("--rate", type=click.IntRange(1), help="Requests in any minute; default: no limit."),
    click.option("--tokens", type=click.IntRange(1), help="Budget of tokens; default: no limit."),
    click.option("--cost", type=click.FloatRange(0, min_open=True), help="Budget in US dollars; default: no limit."),
    click.option(
        "--apply-harness/--no-apply-harness", default=None, help="Apply the agent's harness to calls; default: no."
    ),
    click.option("--until", type=click.DateTime(_TIMES), help="Time (UTC) from which it is refused; default: none."),
)
_FIELDS = {
    "models": "models",
    "paths": "paths",
    "consent": "consent",
    "rate": "requests_per_minute",
    "tokens": "token_budget",
    "cost": "cost_budget_usd",
    "until": "ends_at_us",
    "apply_harness": "applies_harness",
}
"""Field of the record by option."""


def _declares(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of what a key declares."""
    for option in reversed(_DECLARATIONS):
        command = option(command)
    return command


@keys.command("create")
@click.option("--tenant", required=True, help="Tenant of all calls with the key.")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(_SCOPES),
    multiple=True,
    help="Permission (repeatable); default: all but verdicts.",
)
@_declares
@click.option("--note", default="", help="Purpose of the key.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def create(tenant: str, scopes: tuple[str, ...], note: str, as_json: bool, **declared: Any) -> None:
    """Create a key and print it once; the log stores only its digest.

    A key permits what it declares: without --model no model, without --path no further path.
    """
    from stepstream.services.gateway.api_keys import new_key
    from stepstream.topics.events import new_api_key
    from stepstream.topics.ids import new_event_id, now_us

    scopes = scopes or _DEFAULT_SCOPES
    if "calls" in scopes and not declared["models"]:
        raise click.UsageError("a key of the scope calls declares its models: add --model NAME, or --model '*' for all")
    if declared["consent"] is None:
        raise click.UsageError("a key declares the most that its events may permit: add --consent train|analyse|none")
    key_id, key, digest = new_key()
    record = new_api_key(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        key_id=key_id,
        digest=digest,
        tenant=tenant,
        scopes=list(scopes),
        note=note,
        **(_declared_fields(declared) | {"models": list(declared["models"])}),
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
    """List the keys with what they declare and their use so far, without their secrets."""
    with _log() as settings:
        records, used = _read_keys(settings), _read_use(settings)
    rows = [_row(record) | {"used": used[key_id]} for key_id, record in sorted(records.items())]
    if as_json:
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    for row in rows:
        click.echo(f"{row['key_id']}  {row['tenant']:<16} {_state(row):<8} {','.join(row['scopes']):<20} {row['note']}")
        click.echo(f"    {_declaration(row)}")


@keys.command("change")
@click.argument("key_id")
@_declares
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def change(key_id: str, as_json: bool, **declared: Any) -> None:
    """Change what a key declares; what is not named stays."""
    fields = _declared_fields(declared)
    if not fields:
        raise click.UsageError("name what changes: see `stepstream keys change --help`")
    with _log() as settings:
        record = _republish(settings, key_id, fields)
    click.echo(orjson.dumps(_row(record)).decode() if as_json else f"{key_id}: {_declaration(_row(record))}")


@keys.command("revoke")
@click.argument("key_id")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def revoke(key_id: str, as_json: bool) -> None:
    """Revoke a key: gateways reject it from now on."""
    with _log() as settings:
        record = _republish(settings, key_id, {"revoked": True})
    click.echo(orjson.dumps(_row(record)).decode() if as_json else f"revoked {key_id}")


def _declared_fields(declared: dict[str, Any]) -> dict[str, Any]:
    """Return the given options as fields of the record."""
    fields: dict[str, Any] = {}
    for option, value in declared.items():
        if value is None or value == ():
            continue
        if isinstance(value, datetime):
            value = round(value.replace(tzinfo=UTC).timestamp() * 1e6)
        fields[_FIELDS[option]] = list(value) if isinstance(value, tuple) else value
    return fields


def _republish(settings: Settings, key_id: str, fields: dict[str, Any]) -> Any:
    """Publish a key's record with other fields, and return it."""
    from stepstream.topics.ids import new_event_id, now_us

    record = _read_keys(settings).get(key_id)
    if record is None:
        raise click.ClickException(f"there is no key {key_id}: see `stepstream keys list`")
    record |= {"event_id": new_event_id(), "occurred_at_us": now_us()} | fields
    _publish(settings, record)
    return record


def _read_keys(settings: Settings) -> dict[str, Any]:
    from stepstream.cli import compacted_topics

    return compacted_topics.read(settings, API_KEYS)


def _read_use(settings: Settings) -> dict[str, dict[str, float]]:
    """Return the sums of all gateway processes by key id."""
    from stepstream.cli import compacted_topics

    used: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(_USE, 0))
    for record in compacted_topics.read(settings, KEY_USAGE).values():
        sums = used[record["key_id"]]
        for name in _USE:
            sums[name] += record[name]
    return used


def _publish(settings: Settings, record: Any) -> None:
    from stepstream.cli import compacted_topics

    compacted_topics.write(settings, API_KEYS, record["key_id"], record)


def _row(record: Any) -> dict[str, Any]:
    names = ("key_id", "tenant", "scopes", *_FIELDS.values(), "note", "revoked", "occurred_at_us")
    return {name: record[name] for name in names}


def _state(row: dict[str, Any]) -> str:
    if row["revoked"]:
        return "revoked"
    return "ended" if row["ends_at_us"] is not None and row["ends_at_us"] <= time.time() * 1e6 else "valid"


def _declaration(row: dict[str, Any]) -> str:
    """Return what a key declares, in words; with its use if the row has it."""
    models, used = row["models"], row.get("used")
    parts = [
        f"models {'* (not declared)' if models is None else ','.join(models) or 'none'}",
        f"paths {','.join(row['paths']) or 'none'}",
        f"consent {row['consent'] or 'train (not declared)'}",
    ]
    tokens, cost = row["token_budget"], row["cost_budget_usd"]
    if used is not None:
        spent = used["prompt_tokens"] + used["response_tokens"]
        parts += [
            f"requests {used['requests']}"
            + (f" ({row['requests_per_minute']}/min)" if row["requests_per_minute"] else ""),
            f"tokens {spent}" + (f" of {tokens}" if tokens is not None else ""),
            f"cost ${used['cost_usd']:.2f}" + (f" of ${cost:.2f}" if cost is not None else ""),
        ]
    else:
        parts += [f"{word} {value}" for word, value in (("tokens", tokens), ("cost $", cost)) if value is not None]
    if row["ends_at_us"] is not None:
        parts.append(f"until {datetime.fromtimestamp(row['ends_at_us'] / 1e6, UTC).isoformat(timespec='seconds')}")
    return "; ".join(parts)


def _log() -> AbstractContextManager[Settings]:
    """Start the broker if it is down, reporting that on standard error."""
    from stepstream.embedded.stack import ensure_broker

    return ensure_broker(load(), lambda line: click.echo(line, err=True))
