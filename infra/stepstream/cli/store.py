"""`stepstream store`: migrate the tables and views of the analytics store."""

import click

from stepstream.config import load
from stepstream.embedded.addresses import resolve_addresses


@click.group()
def store() -> None:
    """Tables of the analytics store."""


@store.command()
def migrate() -> None:
    """Apply the missing migrations to tables and views; a second run changes nothing."""
    from stepstream.jobs.clickhouse import migrate

    applied = migrate.migrate(resolve_addresses(load()))
    for name in applied:
        click.echo(f"applied {name}")
    if not applied:
        click.echo("nothing to change")
