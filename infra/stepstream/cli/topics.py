"""`stepstream topics`: list the catalogue; plan and apply it to a cluster; print access rights; copy a log."""

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
                "config": topic.settings(settings),
            }
            for topic in TOPICS.values()
        ]
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    for topic in TOPICS.values():
        partitions = f"{topic.partition_count(configured):2} partitions"
        click.echo(f"{prefix}{topic.name:22} {partitions}, by {topic.key}, retention {topic.retention}: {topic.doc}")


_ADOPT = click.option(
    "--adopt",
    multiple=True,
    metavar="NAME",
    help="Take over a topic that Stepstream did not create, by its name in the catalogue; `all`: every one.",
)


@topics.command()
@_ADOPT
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def plan(adopt: tuple[str, ...], as_json: bool) -> int:
    """Show what `topics apply` would create, change, leave or refuse, and why; status 1: it would refuse."""
    from stepstream.topics import admin

    rows = admin.plan(resolve_addresses(load()), _names(adopt))
    if as_json:
        click.echo(orjson.dumps([asdict(row) for row in rows], option=orjson.OPT_INDENT_2).decode())
    else:
        for row in rows:
            values = ", ".join(f"{key}={value}" for key, value in row.values.items())
            click.echo(f"{row.action:6} {row.kind} {row.name}" + "".join(f": {t}" for t in (row.reason, values) if t))
    return int(any(row.action == "refuse" for row in rows))


def _names(adopt: tuple[str, ...]) -> tuple[str, ...]:
    from stepstream.topics.admin import ALL
    from stepstream.topics.catalogue import TOPICS

    if unknown := set(adopt) - {*TOPICS, ALL}:
        raise click.BadParameter(f"the catalogue has no topic {', '.join(sorted(unknown))}", param_hint="--adopt")
    return adopt


@topics.command()
@_ADOPT
@click.option("--json", "as_json", is_flag=True, help="Print the changes as a list of objects.")
def apply(adopt: tuple[str, ...], as_json: bool) -> None:
    """Create or alter the topics and register their schemas; a second run changes nothing.

    Topics that Stepstream did not create are refused, and what others changed stays. See `topics plan`.
    """
    from stepstream.topics import admin

    changes = admin.apply(resolve_addresses(load()), _names(adopt))
    if as_json:
        click.echo(orjson.dumps([asdict(change) for change in changes], option=orjson.OPT_INDENT_2).decode())
        return
    for change in changes:
        click.echo(f"{change.kind} {change.name}: {change.action}")
    if not changes:
        click.echo("nothing to change")


@topics.command()
@click.option(
    "--format",
    "form",
    type=click.Choice(["commands", "strimzi", "json"]),
    default="commands",
    help="Commands of Kafka's `kafka-acls`, KafkaUsers for Strimzi, or a list of objects.",
)
@click.option(
    "--principal", default="User:{}", help="Principal of a user, with {} for its name; mutual TLS: User:CN={}."
)
@click.option("--cluster", default="kafka", help="Name of Strimzi's Kafka resource.")
@click.option(
    "--authentication",
    type=click.Choice(["scram-sha-512", "tls"]),
    default="scram-sha-512",
    help="Authentication of Strimzi's users.",
)
def acls(form: str, principal: str, cluster: str, authentication: str) -> None:
    """Print the access rights of each program, from the catalogue; it connects to nothing."""
    from stepstream.topics import acl_formats
    from stepstream.topics.acls import PROGRAMS, acls_of

    settings = resolve_addresses(load())
    prefix = settings.kafka.prefix
    if form == "commands":
        click.echo("\n".join(acl_formats.commands(settings, principal)))
    elif form == "strimzi":
        for manifest in acl_formats.strimzi_users(settings, cluster, authentication):
            # JSON is YAML.
            click.echo("---\n" + orjson.dumps(manifest, option=orjson.OPT_INDENT_2).decode())
    else:
        rows = [
            {"program": program, "user": acl_formats.user_of(program, prefix), **asdict(acl)}
            for program in PROGRAMS
            for acl in acls_of(program, prefix)
        ]
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())


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
