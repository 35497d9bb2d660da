"""`stepstream query`: print a view of the analytics store, or the result of a read-only query."""

import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepstream.config import load
from stepstream.embedded.addresses import resolve_addresses
from stepstream.topics.ids import DEFAULT_TENANT

if TYPE_CHECKING:
    from stepstream.cli.query_results import Table

_AGO = re.compile(r"(\d+)([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
FORMATS = ("table", "csv", "json", "parquet")


class Time(click.ParamType[datetime]):
    """A time (UTC) in ISO 8601, or a time before now: 30m, 24h, 7d, `now`."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return it in UTC."""
        text = str(value)
        if ago := _AGO.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        if text == "now":
            return datetime.now(UTC)
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                f"'{text}' is no time: use ISO 8601, as 2026-11-23T20:00, or a time ago, as 24h or 7d", param, ctx
            )
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


@click.command()
@click.argument("name", required=False)
@click.option("--list", "lists", is_flag=True, help="List the views.")
@click.option("--describe", is_flag=True, help="Show the meaning, grain and columns of the view.")
@click.option("--sql", help="Run this query instead of a view; it may only read.")
@click.option(
    "--since", type=Time(), default="7d", show_default=True, help="Begin: ISO 8601 (UTC), or 30m, 24h, 7d ago."
)
@click.option("--until", type=Time(), default="now", show_default=True, help="End, as --since; not included.")
@click.option("--by", help="Dimensions to group by, separated by commas; default: those of the view.")
@click.option("--tenant", default=DEFAULT_TENANT, show_default=True, help="Tenant whose rows a view shows.")
@click.option("--format", "format_", type=click.Choice(FORMATS), default="table", show_default=True)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write; default: standard output."
)
@click.option("--limit", type=click.IntRange(min=1), default=10_000, show_default=True, help="Most rows.")
def query(
    name: str | None,
    lists: bool,
    describe: bool,
    sql: str | None,
    since: datetime,
    until: datetime,
    by: str | None,
    tenant: str,
    format_: str,
    output: Path | None,
    limit: int,
) -> None:
    """Print the view NAME of one tenant, or the result of --sql.

    --sql reads all tenants' rows, as the store's reading account does. Exit status 1: there are more rows than --limit.
    """
    from stepstream.cli import query_results
    from stepstream.jobs.clickhouse.views import ViewError, view, views

    if lists:
        for each in views().values():
            click.echo(f"{each.name:28} {each.title}")
        return
    if (name is None) == (sql is None):
        raise click.UsageError("give the NAME of a view, --sql or --list")
    if format_ == "parquet" and output is None:
        raise click.UsageError("--format parquet needs --output FILE")
    if since >= until:
        raise click.UsageError(f"--since {since:%F %T} is not before --until {until:%F %T}")
    try:
        chosen = None if name is None else view(name)
        if describe and chosen is not None:
            click.echo(query_results.description(chosen))
            return
        statement = (
            query_results.of_view(chosen, since, until, tenant, None if by is None else _names(by))
            if chosen is not None
            else query_results.of_text(sql or "")
        )
    except ViewError as error:
        raise click.UsageError(str(error)) from None
    settings = resolve_addresses(load())
    if format_ == "parquet":
        assert output is not None
        output.write_bytes(query_results.parquet(settings, statement, limit))
        return
    table = query_results.rows(settings, statement, limit)
    text = query_results.formatted(table, format_)
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, "utf-8")
    _report_limit(table, limit)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _report_limit(table: "Table", limit: int) -> None:
    if table.is_cut:
        click.echo(
            f"stepstream: there are more than {limit} rows: raise --limit, or narrow --since and --until", err=True
        )
        sys.exit(1)
