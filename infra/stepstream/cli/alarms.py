"""`stepstream alarms`: where what is rewarded rose while a guard fell."""

from datetime import UTC, datetime
from typing import Any

import click
import orjson

from stepstream.config import load
from stepstream.embedded.addresses import wire


@click.command()
@click.option("--all", "cleared_too", is_flag=True, help="Those that are cleared too.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def alarms(cleared_too: bool, as_json: bool) -> None:
    """Show the alarms that stand, the newest first."""
    from stepstream.cli.compacted_topics import read

    known = read(wire(load()), "alarms").values()
    shown = [alarm for alarm in known if cleared_too or alarm["state"] == "raised"]
    shown.sort(key=lambda alarm: (alarm["occurred_at_us"], alarm["alarm_id"]), reverse=True)
    if as_json:
        click.echo(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())
        return
    for alarm in shown:
        click.echo(_line(alarm))
    if not shown:
        click.echo("no alarm stands" if not cleared_too else "no alarm was ever raised")


def _line(alarm: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(alarm["occurred_at_us"] / 1e6, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC  {alarm['state']:8} {alarm['message']}"
