"""`stepstream topics`: list the catalogue of topics; create or alter the topics of a cluster by it."""

from dataclasses import asdict

import click
import orjson

from stepstream.config import load
from stepstream.embedded.addresses import resolve_addresses


@click.group()
def topics() -> None:
    """Topics of the log."""


@topics.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_topics(as_json: bool) -> None:
    """List the catalogue."""
    from stepstream.topics.catalogue import TOPICS

    settings = load()
    configured, prefix = settings.topics, settings.kafka.prefix
    if as_json:
        rows = [
            asdict(topic)
            | {
                "name": prefix + topic.name,
                "partitions": topic.partition_count(configured),
                "config": topic.settings(configured),
            }
            for topic in TOPICS.values()
        ]
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    for topic in TOPICS.values():
        partitions = f"{topic.partition_count(configured):2} partitions"
        click.echo(f"{prefix}{topic.name:22} {partitions}, by {topic.key}, retention {topic.retention}: {topic.doc}")


@topics.command()
@click.option("--json", "as_json", is_flag=True, help="Print the changes as a list of objects.")
def apply(as_json: bool) -> None:
    """Create or alter the topics and register their schemas; a second run changes nothing."""
    from stepstream.topics import admin

    changes = admin.apply(resolve_addresses(load()))
    if as_json:
        click.echo(orjson.dumps([asdict(change) for change in changes], option=orjson.OPT_INDENT_2).decode())
        return
    for change in changes:
        click.echo(f"{change.kind} {change.name}: {change.action}")
    if not changes:
        click.echo("nothing to change")
