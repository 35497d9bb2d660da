"""`stepstream policy`: apply, show and list the governance policies of tenants; check and explain a control policy.

`stepstream policy control` applies, shows, lists and removes control policies.
"""

import getpass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import orjson

from stepstream.cli.control_policies import control
from stepstream.config import load
from stepstream.topics.catalogue import POLICIES


@click.group()
def policy() -> None:
    """Governance policies of tenants, and control policies."""


policy.add_command(control)


@policy.command("apply")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--tenant", required=True, help="Tenant of the policy; `*`: all tenants without their own.")
@click.option("--json", "as_json", is_flag=True, help="Print the new version as an object.")
def apply(file: Path, tenant: str, as_json: bool) -> None:
    """Check FILE and publish it as the tenant's next version, which applies to records governed later."""
    from stepstream.cli import compacted_topics
    from stepstream.embedded.stack import ensure_broker
    from stepstream.jobs.governance.policy import PolicyError, next_version
    from stepstream.jobs.governance.policy import check as check_governance
    from stepstream.topics.events import new_policy
    from stepstream.topics.ids import new_event_id, now_us

    try:
        document = file.read_text("utf-8-sig")
        check_governance(document)
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file} cannot be applied: it is not UTF-8 ({error.reason})") from None
    except PolicyError as error:
        raise click.ClickException(f"{file} cannot be applied: {error}") from None
    with ensure_broker(load(), _print_error) as settings:
        record = new_policy(
            event_id=new_event_id(),
            occurred_at_us=now_us(),
            tenant=tenant,
            version=next_version(compacted_topics.read(settings, POLICIES), tenant),
            document=document,
            author=getpass.getuser(),
        )
        compacted_topics.write(settings, POLICIES, tenant, record)
    if as_json:
        click.echo(_json(_row(record)))
    else:
        click.echo(f"version {record['version']} applies to {tenant} from now on")


@policy.command("show")
@click.option("--tenant", required=True, help="Tenant; `*`: the policy of tenants without their own.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def show(tenant: str, as_json: bool) -> None:
    """Print a tenant's current policy file."""
    from stepstream.cli import compacted_topics
    from stepstream.embedded.stack import ensure_broker
    from stepstream.jobs.governance.policy import EVERY_TENANT

    with ensure_broker(load(), _print_error) as settings:
        policies = compacted_topics.read(settings, POLICIES)
    record = policies.get(tenant) or policies.get(EVERY_TENANT)
    if as_json:
        click.echo(_json(None if record is None else _row(record) | {"document": record["document"]}))
    elif record is None:
        click.echo(f"# {tenant} has no policy: the built-in one applies, which is an empty file")
    else:
        click.echo(f"# version {record['version']} for {record['tenant']}\n{record['document'].rstrip()}")


@policy.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_policies(as_json: bool) -> None:
    """List the newest version of each tenant."""
    from stepstream.cli import compacted_topics
    from stepstream.embedded.stack import ensure_broker

    with ensure_broker(load(), _print_error) as settings:
        rows = [_row(record) for _, record in sorted(compacted_topics.read(settings, POLICIES).items())]
    if as_json:
        click.echo(_json(rows))
        return
    for row in rows:
        click.echo(f"{row['tenant']:20} version {row['version']:3} {row['applied_at']} by {row['author']}")
    if not rows:
        click.echo("no policy: the built-in one applies")


@policy.command("check")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print an object with hash, sentences and values in effect.")
def check(file: Path, as_json: bool) -> None:
    """Check the control policy FILE, and explain it in words."""
    from stepstream.cli.control_policy import read_policy
    from stepstream.services.control.decide.own_rules import policy_hash
    from stepstream.services.control.decide.words import describe

    parsed, own = read_policy(file)
    if as_json:
        click.echo(
            _json(
                {
                    "hash": policy_hash(parsed, own),
                    "own_rules": {one.name: one.version for one in own},
                    "sentences": describe(parsed),
                    "policy": parsed.model_dump(mode="json"),
                }
            )
        )
    else:
        click.echo("\n".join(describe(parsed)))


def _row(record: Any) -> dict[str, Any]:
    applied = datetime.fromtimestamp(record["occurred_at_us"] / 1e6, UTC)
    return {
        "tenant": record["tenant"],
        "version": record["version"],
        "applied_at": applied.isoformat(timespec="seconds"),
        "author": record["author"],
    }


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def _print_error(line: str) -> None:
    click.echo(line, err=True)
