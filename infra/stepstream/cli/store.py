"""`stepstream store`: the analytics store's tables."""

import click

from stepstream.config import load
from stepstream.embedded.addresses import wire


@click.group()
def store() -> None:
    """The analytics store."""


@store.command()
def migrate() -> None:
    """Bring tables and views to what this version expects; a second time changes nothing."""
    from stepstream.jobs.clickhouse import migrate

    applied = migrate.migrate(wire(load()))
    for name in applied:
        click.echo(f"applied {name}")
    if not applied:
        click.echo("nothing to change")
