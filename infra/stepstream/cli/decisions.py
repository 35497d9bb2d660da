"""`stepstream decisions`: list and show decisions of the control plane, answer and undo them, freeze policies.

A person's name is that of the operating system's user, as for `stepstream harness`. The role is that of the console's
user of this name. Where the console asks for no login, everyone who can write to Kafka is `admin`, as in the console.
"""

import getpass
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click
import orjson

from stepstream.config import Settings, load
from stepstream.topics.catalogue import APPROVALS, CONSOLE_USERS, CONTROL_POLICIES

_Function = Callable[..., None]
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_COMMENT = click.option("--comment", default="", help="Comment, for the log.")


@click.group()
def decisions() -> None:
    """Decisions of the control plane: which lever, why, who approved, what was done."""


@decisions.command("list")
@click.option("--tenant", default="", help="Tenant; default: all.")
@click.option("--agent", default="", help="Agent; default: all.")
@click.option("--model", default="", help="Model; default: all.")
@click.option("--state", default="", help="State, as awaiting or done; default: all.")
@click.option("--holds", is_flag=True, help="List also the decisions to hold.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Largest number of rows.")
@_JSON
def list_decisions(tenant: str, agent: str, model: str, state: str, holds: bool, limit: int, as_json: bool) -> None:
    """List the newest decisions first."""
    from stepstream.services.control.decision_log import read_decisions
    from stepstream.services.control.decisions import STATES
    from stepstream.topics.ids import now_us

    if state not in {"", *STATES}:
        raise click.UsageError(f"there is no state {state}; states are {', '.join(STATES)}")
    with _log() as settings:
        log = read_decisions(settings)
    filters = {"tenant": tenant, "agent": agent, "model": model, "state": state}
    rows = log.listed(now_us(), **filters, holds=holds or state == "held")[:limit]
    if as_json:
        click.echo(_json(rows))
        return
    for row in rows:
        what = " ".join(filter(None, (row["action"], row["lever"], row["target"])))
        subject = f"{row['tenant']}/{row['agent']} {row['model']}"
        click.echo(f"{row['id']}  {_time(row['at_us'])}  {row['state']:<9} {subject:<28} {what:<28} {row['reason']}")
    if not rows:
        click.echo("no decision: the control plane decides once it runs and agents work")


@decisions.command("show")
@click.argument("decision_id")
@_JSON
def show(decision_id: str, as_json: bool) -> None:
    """Print a decision: evidence, alternatives that lost, who answered, what was done, what undoes it."""
    from stepstream.services.control.decision_log import read_decisions
    from stepstream.services.control.decisions import UnknownDecision
    from stepstream.topics.ids import now_us

    with _log() as settings:
        log = read_decisions(settings)
        if decision_id not in log.by_id:
            log = read_decisions(settings, newest=None)
    try:
        details = log.details(log.found(decision_id), now_us())
    except UnknownDecision as error:
        raise click.ClickException(str(error)) from None
    click.echo(_json(details) if as_json else "\n".join(_lines(details)))


@decisions.command("approve")
@click.argument("decision_id")
@_COMMENT
@_JSON
def approve(decision_id: str, comment: str, as_json: bool) -> None:
    """Approve a decision that waits. Exit status 1: the approval does not count; the reason is printed."""
    _answer(decision_id, "approved", comment, as_json)


@decisions.command("reject")
@click.argument("decision_id")
@_COMMENT
@_JSON
def reject(decision_id: str, comment: str, as_json: bool) -> None:
    """Reject a decision that waits. Exit status 1: the rejection does not count; the reason is printed."""
    _answer(decision_id, "rejected", comment, as_json)


@decisions.command("undo")
@click.argument("decision_id")
@click.option("--reason", default="", help="Reason, for the log.")
@_JSON
def undo(decision_id: str, reason: str, as_json: bool) -> None:
    """Take back what a decision did, while it serves."""
    from stepstream.cli import compacted_topics
    from stepstream.services.control.decision_log import read_decisions
    from stepstream.services.control.decisions import UnknownDecision
    from stepstream.services.control.undo_records import REFUSALS, undo_records

    with _log() as settings:
        try:
            decision = read_decisions(settings, newest=None).found(decision_id)
            records = undo_records(settings, decision, getpass.getuser(), reason)
        except (UnknownDecision, *REFUSALS) as error:
            raise click.ClickException(str(error)) from None
        for topic, key, record in records:
            compacted_topics.write(settings, topic, key, record)
    text = records[-1][2]["description"]
    click.echo(_json({"id": decision_id, "undone": text}) if as_json else text)


def _freezing(command: _Function) -> _Function:
    for option in (
        _JSON,
        click.option("--policy", "name", default="", help="Name of one policy; default: all of the tenant."),
        click.option("--tenant", default="default", show_default=True, help="Tenant."),
    ):
        command = option(command)
    return command


@decisions.command("freeze")
@_freezing
def freeze(tenant: str, name: str, as_json: bool) -> None:
    """Start nothing more for a tenant; what runs may still be taken back. It is the kill switch."""
    _freeze(tenant, name, as_json, is_frozen=True)


@decisions.command("unfreeze")
@_freezing
def unfreeze(tenant: str, name: str, as_json: bool) -> None:
    """Let the policies of a tenant start levers again."""
    _freeze(tenant, name, as_json, is_frozen=False)


def _freeze(tenant: str, name: str, as_json: bool, *, is_frozen: bool) -> None:
    """Write the next version of the policies that change, and print them."""
    from stepstream.cli import compacted_topics
    from stepstream.services.control.policy_versions import PolicyRefused, frozen, record_key
    from stepstream.topics.ids import new_event_id, now_us

    with _log() as settings:
        policies = compacted_topics.read(settings, CONTROL_POLICIES).values()
        author = getpass.getuser()
        try:
            records = frozen(
                policies, tenant, name, is_frozen=is_frozen, author=author, now_us=now_us(), new_id=new_event_id
            )
        except PolicyRefused as error:
            raise click.ClickException(str(error)) from None
        for record in records:
            compacted_topics.write(settings, CONTROL_POLICIES, record_key(tenant, record["name"]), record)
    state = "frozen" if is_frozen else "in force"
    rows = [{"tenant": tenant, "policy": one["name"], "version": one["version"], "state": state} for one in records]
    if as_json:
        click.echo(_json(rows))
        return
    for row in rows:
        click.echo(f"policy {row['policy']} of {tenant} is {state} (version {row['version']})")
    if not rows:
        click.echo(f"nothing to do: the policies of {tenant} are {state} already")


def _answer(decision_id: str, verdict: str, comment: str, as_json: bool) -> None:
    """Write a person's answer, also one that does not count, and print whether it does."""
    from stepstream.cli import compacted_topics
    from stepstream.services.control.decision_log import read_decisions
    from stepstream.services.control.decisions import UnknownDecision
    from stepstream.services.control.signatures import signing_key
    from stepstream.topics.ids import new_event_id, now_us

    with _log() as settings:
        log = read_decisions(settings)
        author = _author(settings)
        try:
            answer = log.answered(
                decision_id,
                verdict,
                tenant=author.tenant,
                author=author.name,
                role=author.role,
                comment=comment,
                event_id=new_event_id(),
                now_us=now_us(),
                key=signing_key(settings.control),
            )
        except UnknownDecision as error:
            raise click.ClickException(str(error)) from None
        compacted_topics.write(settings, APPROVALS, decision_id, answer)
    if as_json:
        click.echo(_json(answer))
    if answer["refused"]:
        raise click.ClickException(f"decision {decision_id}: {answer['refused']}")


class _Person(NamedTuple):
    """Who runs the command."""

    name: str
    role: str
    """Empty: unknown."""
    tenant: str
    """The one tenant whose decisions the person may answer; empty: all."""


def _author(settings: Settings) -> _Person:
    """Return the person with the role of the console's user of the name; without login everyone is `admin`."""
    from stepstream.cli import compacted_topics

    name = getpass.getuser()
    user = compacted_topics.read(settings, CONSOLE_USERS).get(name)
    if user is not None and not user["removed"]:
        return _Person(name, user["role"], user["tenant"])
    return _Person(name, "" if settings.console.login else "admin", "")


def _lines(row: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that describe a decision."""
    yield f"{row['id']}  {_time(row['at_us'])}  {row['tenant']}/{row['agent']} {row['model']}"
    share = f" on {row['share']:.0%} of trajectories" if row["share"] else ""
    yield f"{' '.join(filter(None, (row['action'], row['lever'], row['target'])))}{share}: {row['state']}"
    yield f"rule {row['rule'] or 'none'}: {row['reason']}"
    for one in row["evidence"]:
        window = f" ({one['view']}, {_time(one['since_us'])} to {_time(one['until_us'])})" if one["since_us"] else ""
        yield f"  {one['name']}: {_figure(one)}{window}"
    if row["detectable_effect"] is not None:
        yield f"  it can detect a difference of {row['detectable_effect']:.3g}"
    yield f"  from view {row['view'] or 'unknown'}, position {row['position'] or 'unknown'}"
    for one in row["lost"]:
        yield f"not {one['action']} {one['lever']} ({one['rule']}): {one['reason']}"
    if row["approvals"]:
        yield f"{row['approvals']} of {', '.join(row['roles'])} must approve until {_time(row['watched_until_us'])}"
    for one in row["answers"]:
        refused = f", does not count: {one['refused']}" if one["refused"] else ""
        comment = f": {one['comment']}" if one["comment"] else ""
        signature = f", signed by key {one['signature']['key_id']}" if one["signature"] else ""
        yield f"  {one['author']} ({one['role'] or 'unknown role'}) {one['verdict']} it{comment}{signature}{refused}"
    for one in row["acts"]:
        texts = "; ".join(filter(None, (one["description"], one["reason"])))
        yield f"{one['state']} {_time(one['occurred_at_us'])}: {texts}"
    if row["undo"]:
        yield f"undo: {row['undo']}"


def _figure(one: dict[str, Any]) -> str:
    if one["value"] is None:
        return one["reason"] or "undefined"
    bounds = "" if one["low"] is None else f" ({one['low']:.4g} to {one['high']:.4g})"
    return f"{one['value']:.4g}{bounds}" + (f", n = {one['n']}" if one["n"] else "")


def _time(at_us: int) -> str:
    return f"{datetime.fromtimestamp(at_us / 1e6, UTC):%Y-%m-%d %H:%M:%S}"


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def _log() -> AbstractContextManager[Settings]:
    """Start the broker if it is down, reporting that on standard error."""
    from stepstream.embedded.stack import ensure_broker

    return ensure_broker(load(), lambda line: click.echo(line, err=True))
