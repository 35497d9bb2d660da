"""`stepstream consent`: set and list the consent of tenants, persons and agents."""

from typing import Any

import click
import orjson

from stepstream.config import load
from stepstream.topics.catalogue import CONSENTS


@click.group()
def consent() -> None:
    """Consent to the use of records: train, analyse or none."""


@consent.command("set")
@click.argument("level", type=click.Choice(["train", "analyse", "none"]))
@click.option("--tenant", required=True, help="Tenant that the consent covers.")
@click.option("--user", help="Person that it covers; default: all persons of the tenant.")
@click.option("--agent", help="Agent that it covers; default: all agents.")
@click.option("--json", "as_json", is_flag=True, help="Print the new consent as an object.")
def set_consent(level: Any, tenant: str, user: str | None, agent: str | None, as_json: bool) -> None:
    """Set the consent for later and for stored records. If several consents cover a record, the strictest applies."""
    from stepstream.cli import compacted_topics
    from stepstream.embedded.stack import ensure_broker
    from stepstream.jobs.governance.consent import consent_key
    from stepstream.topics.events import new_consent_change
    from stepstream.topics.ids import new_event_id, now_us

    key = consent_key(tenant, user, agent)
    record = new_consent_change(
        event_id=new_event_id(), occurred_at_us=now_us(), tenant=tenant, user=user, agent=agent, consent=level
    )
    with ensure_broker(load(), _print_error) as settings:
        compacted_topics.write(settings, CONSENTS, key, record)
    click.echo(_json(_row(record)) if as_json else f"{key}: {level}")


@consent.command("list")
@click.option("--tenant", help="Only this tenant.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_consents(tenant: str | None, as_json: bool) -> None:
    """List the consents that were set."""
    from stepstream.cli import compacted_topics
    from stepstream.embedded.stack import ensure_broker

    with ensure_broker(load(), _print_error) as settings:
        records = sorted(compacted_topics.read(settings, CONSENTS).items())
    records = [(key, record) for key, record in records if tenant in (None, record["tenant"])]
    if as_json:
        click.echo(_json([_row(record) for _, record in records]))
        return
    for key, record in records:
        click.echo(f"{key:40} {record['consent']}")
    if not records:
        click.echo("no consent is set: policies and the records' own consent apply")


def _row(record: Any) -> dict[str, Any]:
    return {name: record[name] for name in ("tenant", "user", "agent", "consent")}


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def _print_error(line: str) -> None:
    click.echo(line, err=True)
