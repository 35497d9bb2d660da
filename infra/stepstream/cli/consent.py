"""`stepstream consent`: what tenants, persons and agents allow."""

from typing import Any

import click
import orjson

from stepstream.config import load


@click.group()
def consent() -> None:
    """What may be done with what agents tell: train, analyse or none."""


@consent.command("set")
@click.argument("level", type=click.Choice(["train", "analyse", "none"]))
@click.option("--tenant", required=True, help="Tenant that it is about.")
@click.option("--user", help="Person that it is about; default: all of the tenant.")
@click.option("--agent", help="Agent that it is about; default: all agents.")
@click.option("--json", "as_json", is_flag=True, help="Print what was set as an object.")
def set_consent(level: Any, tenant: str, user: str | None, agent: str | None, as_json: bool) -> None:
    """Set what is allowed from now on, also for what is stored already. Of all that applies, the strictest counts."""
    from stepstream.cli import compacted_topics
    from stepstream.embedded.on_demand import log_at_hand
    from stepstream.jobs.governance.consent import consent_key
    from stepstream.topics.events import new_consent_change
    from stepstream.topics.ids import new_event_id, now_us

    key = consent_key(tenant, user, agent)
    record = new_consent_change(
        event_id=new_event_id(), occurred_at_us=now_us(), tenant=tenant, user=user, agent=agent, consent=level
    )
    with log_at_hand(load(), _say) as settings:
        compacted_topics.write(settings, "consents", key, record)
    click.echo(_json(_row(record)) if as_json else f"{key}: {level}")


@consent.command("list")
@click.option("--tenant", help="Only this tenant.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_consents(tenant: str | None, as_json: bool) -> None:
    """List what was said."""
    from stepstream.cli import compacted_topics
    from stepstream.embedded.on_demand import log_at_hand

    with log_at_hand(load(), _say) as settings:
        said = sorted(compacted_topics.read(settings, "consents").items())
    said = [(key, record) for key, record in said if tenant in (None, record["tenant"])]
    if as_json:
        click.echo(_json([_row(record) for _, record in said]))
        return
    for key, record in said:
        click.echo(f"{key:40} {record['consent']}")
    if not said:
        click.echo("nothing was said: policies and the records themselves decide")


def _row(record: Any) -> dict[str, Any]:
    return {name: record[name] for name in ("tenant", "user", "agent", "consent")}


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def _say(line: str) -> None:
    click.echo(line, err=True)
