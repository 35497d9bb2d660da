"""`stepstream topics`: list the catalogue of topics; create or alter the topics of a cluster by it; copy a log."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
import orjson

from stepstream.config import load
from stepstream.embedded.addresses import resolve_addresses

if TYPE_CHECKING:
    from stepstream.jobs.log_copy.copier import LogCopier

_PROGRESS_S = 2.0


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


@topics.command()
@click.option("--from-prefix", "source", required=True, help="Prefix to copy from; '' for none.")
@click.option("--finish", is_flag=True, help="Copy the rest, let the jobs go on after it, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as an object.")
def copy(source: str, finish: bool, as_json: bool) -> None:
    """Copy the log of another prefix to `kafka.prefix`, which may have another number of partitions.

    It follows the source until it is interrupted, and goes on where it ended when it is run again, also after a kill.
    `--finish` needs the source's producers and jobs stopped; see docs/operations.md.
    """
    from stepstream.jobs.log_copy.copier import LogCopier
    from stepstream.jobs.log_copy.switch import switch

    settings = resolve_addresses(load())
    groups: dict[str, list[str]] = {}
    with LogCopier(settings, source) as copier:
        copier.start()
        try:
            if finish:
                groups = switch(settings, source, copier)
            else:
                _follow(copier)
        except KeyboardInterrupt:
            pass
        result = {"copied": copier.copied, "lag": copier.lag(), "finished": finish, "groups": groups}
    if as_json:
        click.echo(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode())
        return
    click.echo(f"copied {result['copied']} records, {result['lag']} offsets to go")
    for group, names in groups.items():
        click.echo(f"{settings.kafka.prefix}{group} goes on after the copies of {', '.join(names)}")


def _follow(copier: "LogCopier") -> None:
    """Copy until interrupted; print the progress every few seconds."""
    shown_s = 0.0
    while True:
        copier.copy_batch()
        if time.monotonic() >= shown_s + _PROGRESS_S:
            click.echo(f"copied {copier.copied} records, {copier.lag()} offsets to go", err=True)
            shown_s = time.monotonic()
