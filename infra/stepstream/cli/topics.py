"""`stepstream topics`: the catalogue, and bringing a cluster to it."""

from dataclasses import asdict

import click
import orjson

from stepstream.config import load
from stepstream.embedded.addresses import wire


@click.group()
def topics() -> None:
    """The topics of the log."""


@topics.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_topics(as_json: bool) -> None:
    """Show the catalogue."""
    from stepstream.topics.catalogue import TOPICS

    if as_json:
        rows = [asdict(topic) | {"config": topic.settings()} for topic in TOPICS.values()]
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    for topic in TOPICS.values():
        click.echo(f"{topic.name:22} {topic.partitions:2} partitions, by {topic.key}, kept {topic.kept}: {topic.doc}")


@topics.command()
@click.option("--json", "as_json", is_flag=True, help="Print what was changed as a list of objects.")
def apply(as_json: bool) -> None:
    """Create or alter the topics and register their schemas; a second time changes nothing."""
    from stepstream.topics import admin

    changes = admin.apply(wire(load()))
    if as_json:
        click.echo(orjson.dumps([asdict(change) for change in changes], option=orjson.OPT_INDENT_2).decode())
        return
    for change in changes:
        click.echo(f"{change.kind} {change.name}: {change.action}")
    if not changes:
        click.echo("nothing to change")
