"""`stepstream alarms`: list alarms: a reward rose while a guard metric fell, or engine and learner differ."""

from datetime import UTC, datetime
from typing import Any

import click
import orjson

from stepstream.config import load
from stepstream.embedded.addresses import resolve_addresses
from stepstream.topics.catalogue import ALARMS


@click.command()
@click.option("--all", "cleared_too", is_flag=True, help="List cleared alarms too.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def alarms(cleared_too: bool, as_json: bool) -> None:
    """List the active alarms, newest first."""
    from stepstream.cli.compacted_topics import read

    records = read(resolve_addresses(load()), ALARMS).values()
    listed = [alarm for alarm in records if cleared_too or alarm["state"] == "raised"]
    listed.sort(key=lambda alarm: (alarm["occurred_at_us"], alarm["alarm_id"]), reverse=True)
    if as_json:
        click.echo(orjson.dumps(listed, option=orjson.OPT_INDENT_2).decode())
        return
    for alarm in listed:
        click.echo(_line(alarm))
    if not listed:
        click.echo("no alarm was ever raised" if cleared_too else "no alarm is active")


def _line(alarm: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(alarm["occurred_at_us"] / 1e6, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC  {alarm['state']:8} {alarm['message']}"
