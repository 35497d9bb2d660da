"""`stepstream config`: show every setting with its effective value and the value's source, secrets masked."""

from dataclasses import asdict

import click
import orjson

from stepstream.config import effective, load_with_origins, variable


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def config(as_json: bool) -> None:
    """Show the effective settings and the source of each value.

    Environment variables override the TOML file that STEPSTREAM_CONFIG names, which overrides the defaults.
    The variable of `kafka.bootstrap` is STEPSTREAM_KAFKA_BOOTSTRAP, and so on.
    """
    rows = effective(*load_with_origins())
    if as_json:
        objects = [asdict(row) | {"variable": variable(*row.name.split(".", 1))} for row in rows]
        click.echo(orjson.dumps(objects, option=orjson.OPT_INDENT_2).decode())
        return
    section = ""
    for row in rows:
        head, _, field = row.name.partition(".")
        if head != section:
            section = head
            click.echo(f"[{section}]")
        origin = "" if row.origin == "default" else f"  <- {row.origin}"
        click.echo(f"  {field} = {row.value}{origin}")
