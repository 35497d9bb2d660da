"""`stepstream console users`: add, list and remove the console's users."""

import re
from contextlib import AbstractContextManager
from typing import Any

import click
import orjson

from stepstream.config import Settings, load
from stepstream.topics.catalogue import CONSOLE_USERS

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def console() -> None:
    """The console: a web application over the tables."""


@console.group()
def users() -> None:
    """Users who log in with a password."""


@users.command("add")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["viewer", "operator", "admin"]),
    default="viewer",
    show_default=True,
    help="`operator` also acts: labels, redrives, releases; `admin` also sees settings and the audit.",
)
@click.option("--tenant", default="", help="The one tenant whose data the user sees; without it, all tenants.")
@click.option(
    "--password",
    envvar="STEPSTREAM_CONSOLE_PASSWORD",
    prompt=True,
    hide_input=True,
    confirmation_prompt=True,
    help="At least 12 characters; asked for, or taken from STEPSTREAM_CONSOLE_PASSWORD.",
)
@JSON
def add(name: str, role: str, tenant: str, password: str, as_json: bool) -> None:
    """Add a user, or replace role, tenant and password of one; that ends the user's sessions."""
    from stepstream.services.console.access.passwords import LONGEST, SHORTEST, digest_of
    from stepstream.topics.events import new_console_user
    from stepstream.topics.ids import new_event_id, now_us

    if not _NAME.fullmatch(name):
        raise click.UsageError("a name has up to 100 letters, digits and . _ @ -, and begins with a letter or digit")
    if not SHORTEST <= len(password) <= LONGEST:
        raise click.UsageError(f"a password has {SHORTEST} to {LONGEST} characters")
    record = new_console_user(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        name=name,
        role=role,
        tenant=tenant,
        password_digest=digest_of(password),
    )
    with _log() as settings:
        _write(settings, record)
    text = f"{name}: {role}, {tenant or 'all tenants'}"
    click.echo(orjson.dumps(_row(record)).decode() if as_json else text)


@users.command("list")
@JSON
def list_users(as_json: bool) -> None:
    """List the users."""
    with _log() as settings:
        rows = [_row(record) for _, record in sorted(_read(settings).items()) if not record["removed"]]
    if as_json:
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    for row in rows:
        click.echo(f"{row['name']:<24} {row['role']:<9} {row['tenant'] or 'all tenants'}")
    if not rows:
        click.echo("no users: add one with `stepstream console users add NAME --role admin`", err=True)


@users.command("remove")
@click.argument("name")
@JSON
def remove(name: str, as_json: bool) -> None:
    """Remove a user; that ends the user's sessions. Exit status 1: there is none of this name."""
    from stepstream.topics.ids import new_event_id, now_us

    with _log() as settings:
        record = _read(settings).get(name)
        if record is None or record["removed"]:
            raise click.ClickException(f"there is no user {name}: see `stepstream console users list`")
        record |= {"event_id": new_event_id(), "occurred_at_us": now_us(), "removed": True, "password_digest": ""}
        _write(settings, record)
    click.echo(orjson.dumps({"removed": name}).decode() if as_json else f"removed {name}")


def _row(record: Any) -> dict[str, Any]:
    return {field: record[field] for field in ("name", "role", "tenant", "occurred_at_us")}


def _read(settings: Settings) -> dict[str, Any]:
    from stepstream.cli import compacted_topics

    return compacted_topics.read(settings, CONSOLE_USERS)


def _write(settings: Settings, record: Any) -> None:
    from stepstream.cli import compacted_topics

    compacted_topics.write(settings, CONSOLE_USERS, record["name"], record)


def _log() -> AbstractContextManager[Settings]:
    """Start the broker if it is down, reporting that on standard error."""
    from stepstream.embedded.stack import ensure_broker

    return ensure_broker(load(), lambda line: click.echo(line, err=True))
