"""`stepstream policy control`: apply, list, show and remove control policies."""

import getpass
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click
import orjson

from stepstream.config import Settings, load
from stepstream.topics.catalogue import CONTROL_POLICIES

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_TENANT = click.option("--tenant", default="default", show_default=True, help="Tenant of the policy.")
_AGENTS = """
SELECT groupUniqArray(agent) AS agents, groupUniqArray(model) AS models FROM trajectories
WHERE tenant = {tenant:String}
"""


@click.group()
def control() -> None:
    """Control policies: which levers may be pulled, how far, and who must approve."""


@control.command("apply")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", default="default", show_default=True, help="Name of the policy, unique for its tenant.")
@click.option("--unseen", is_flag=True, help="Accept agents and models that have no trajectory yet.")
@_JSON
def apply(file: Path, name: str, unseen: bool, as_json: bool) -> None:
    """Check FILE and publish it as the policy's next version; the control plane follows it within seconds.

    A pattern of agents or models that matches none of the tenant is refused with its line.
    """
    from stepstream.cli import compacted_topics
    from stepstream.services.control.decide.policy import ControlPolicy, PolicyError
    from stepstream.services.control.policy_versions import applied, record_key
    from stepstream.services.control.rule_packages import load_rules
    from stepstream.topics.ids import new_event_id, now_us

    try:
        document = file.read_text("utf-8-sig")
        policy = ControlPolicy.parse(document)
        load_rules(policy, document)
        with _log() as settings:
            if not unseen:
                _check_seen(settings, document, policy)
            key = record_key(policy.tenant, name)
            policies = compacted_topics.read(settings, CONTROL_POLICIES).values()
            author = getpass.getuser()
            record = applied(
                policies, name=name, document=document, author=author, event_id=new_event_id(), now_us=now_us()
            )
            compacted_topics.write(settings, CONTROL_POLICIES, key, record)
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file} cannot be applied: it is not UTF-8 ({error.reason})") from None
    except PolicyError as error:
        raise click.ClickException(f"{file} cannot be applied: {error}") from None
    state = "is frozen, until `stepstream decisions unfreeze`" if record["frozen"] else "applies from now on"
    text = f"version {record['version']} of {name} of {policy.tenant} {state}"
    click.echo(_json(_row(record)) if as_json else text)


@control.command("list")
@_JSON
def list_policies(as_json: bool) -> None:
    """List the newest version of each policy."""
    with _log() as settings:
        rows = [_row(record) for _, record in sorted(_read(settings).items())]
    if as_json:
        click.echo(_json(rows))
        return
    for row in rows:
        state = "frozen" if row["frozen"] else "in force"
        click.echo(
            f"{row['tenant']:16} {row['name']:16} version {row['version']:3} {state:8} "
            f"{row['applied_at']} by {row['author']}"
        )
    if not rows:
        click.echo("no control policy: the control plane decides nothing")


@control.command("show")
@click.argument("name", default="default")
@_TENANT
@_JSON
def show(name: str, tenant: str, as_json: bool) -> None:
    """Print a policy's file and its meaning in words."""
    from stepstream.services.control.decide.policy import ControlPolicy
    from stepstream.services.control.decide.words import describe
    from stepstream.services.control.policy_versions import record_key

    with _log() as settings:
        policies = _read(settings)
    record = policies.get(record_key(tenant, name))
    if record is None and (name != "default" or any(one["tenant"] == tenant for one in policies.values())):
        raise click.ClickException(
            f"tenant {tenant} has no control policy {name}: see `stepstream policy control list`"
        )
    policy = ControlPolicy(tenant=tenant) if record is None else ControlPolicy.parse(record["document"])
    if as_json:
        row = None if record is None else _row(record) | {"document": record["document"]}
        click.echo(_json({"policy": row, "sentences": describe(policy)}))
        return
    if record is None:
        click.echo(f"# {tenant} has no control policy, so nothing is decided; these are the limits of an empty file")
    else:
        frozen = ", frozen" if record["frozen"] else ""
        click.echo(f"# version {record['version']} of {name} of {tenant}{frozen}\n{record['document'].rstrip()}\n")
    click.echo("\n".join(describe(policy)))


@control.command("remove")
@click.argument("name")
@_TENANT
@_JSON
def remove(name: str, tenant: str, as_json: bool) -> None:
    """Remove a policy. Exit status 1: there is none of this name, or it is frozen."""
    from stepstream.cli import compacted_topics
    from stepstream.services.control.policy_versions import record_key

    key = record_key(tenant, name)
    with _log() as settings:
        record = _read(settings).get(key)
        if record is None:
            raise click.ClickException(f"tenant {tenant} has no control policy {name}")
        if record["frozen"]:  # its removal would end the freeze
            raise click.ClickException(f"policy {name} is frozen: run `stepstream decisions unfreeze` first")
        compacted_topics.delete(settings, CONTROL_POLICIES, key)
    click.echo(_json({"tenant": tenant, "removed": name}) if as_json else f"removed {name} of {tenant}")


def _check_seen(settings: Settings, document: str, policy: Any) -> None:
    """Refuse patterns that match no agent or model with trajectories.

    Raises:
        PolicyError: one matches none; the message has its line.
        StoreUnavailableError: the store does not answer.
    """
    from stepstream.jobs.clickhouse.connection import connect
    from stepstream.services.control.decide.policy import PolicyError
    from stepstream.services.control.decide.policy_lines import line_of

    given = {name: [one for one in getattr(policy, name) if one != "*"] for name in ("agents", "models")}
    if not any(given.values()):
        return
    with connect(settings, database=settings.clickhouse.database) as client:
        [row] = client.query(_AGENTS, parameters={"tenant": policy.tenant}).named_results()
    for name, patterns in given.items():
        for pattern in patterns:
            if not any(fnmatchcase(one, pattern) for one in row[name]):
                known = ", ".join(sorted(row[name])[:20]) or "none"
                where = f"line {line_of(document, [name])}: {name}"
                raise PolicyError(
                    f"{where}: {pattern!r} matches none of tenant {policy.tenant}; known: {known}. "
                    "With --unseen it is accepted"
                )


def _row(record: Any) -> dict[str, Any]:
    applied_at = datetime.fromtimestamp(record["occurred_at_us"] / 1e6, UTC).isoformat(timespec="seconds")
    names = ("tenant", "name", "version", "hash", "frozen", "author")
    return {name: record[name] for name in names} | {"applied_at": applied_at}


def _read(settings: Settings) -> dict[str, Any]:
    from stepstream.cli import compacted_topics

    return compacted_topics.read(settings, CONTROL_POLICIES)


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def _log() -> AbstractContextManager[Settings]:
    """Start the broker if it is down, reporting that on standard error."""
    from stepstream.embedded.stack import ensure_broker

    return ensure_broker(load(), lambda line: click.echo(line, err=True))
