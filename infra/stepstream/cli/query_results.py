"""Run the queries of `stepstream query` on the store's reading account, and format their results."""

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

import click
import orjson
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from stepstream.cli.query_intervals import INTERVALS
from stepstream.config import Settings
from stepstream.jobs.clickhouse.connection import connect
from stepstream.jobs.clickhouse.views import DIMENSIONS, View, ViewError, view

_SECONDS = 120
"""Longest time of a query."""
_MEMORY_BYTES = 4 * 1024**3
_MOST_TASKS = 1_000_000
"""Largest number of tasks of a bootstrap."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A query with its parameters."""

    sql: str
    parameters: dict[str, str] = field(default_factory=dict)
    view: str = ""
    """Name of the view; empty: a text."""
    grain: tuple[str, ...] = ()
    """Dimensions of its rows."""


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a result."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    is_cut: bool = False
    """True: there are more rows."""


def of_view(view: View, since: datetime, until: datetime, tenant: str, by: Sequence[str] | None = None) -> Statement:
    """Return the query of a tenant's rows of a view, in the order of its grain.

    Raises:
        ViewError: it cannot be grouped so.
    """
    grain = view.grain if by is None else tuple(dict.fromkeys((*view.keys, *by)))
    sql = f"SELECT * FROM (\n{view.sql(by)}\n)"
    if "tenant" in view.keys:
        sql += " WHERE tenant = {tenant:String}"
    if order := (*grain, *view.series):
        sql += f" ORDER BY {', '.join(order)}"
    times = {"since": f"{since:%Y-%m-%d %H:%M:%S}", "until": f"{until:%Y-%m-%d %H:%M:%S}"}
    return Statement(sql, {**times, "tenant": tenant}, view.name, grain)


def of_text(sql: str) -> Statement:
    """Return the query of a text, which must be one statement that only reads: the store refuses others."""
    return Statement(sql.strip().rstrip(";"))


def rows(settings: Settings, statement: Statement, limit: int) -> Table:
    """Return at most `limit` rows.

    Raises:
        ClickException: the store rejects the query, or the view has no intervals at this grain.
    """
    with _reader(settings, limit) as client:
        found = client.query(statement.sql, parameters=statement.parameters)
        table = Table(found.column_names, found.result_rows[:limit], len(found.result_rows) > limit)
    return _with_intervals(settings, table, statement) if statement.view in INTERVALS else table


def _with_intervals(settings: Settings, table: Table, statement: Statement) -> Table:
    def read(name: str, by: Sequence[str]) -> list[dict[str, Any]]:
        sql = f"SELECT * FROM ({view(name).sql(by)}) WHERE tenant = {{tenant:String}}"
        with _reader(settings, _MOST_TASKS) as client:
            return list(client.query(sql, parameters=statement.parameters).named_results())

    objects = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    try:
        extended = INTERVALS[statement.view](objects, statement.grain, read)
    except ViewError as error:
        raise click.ClickException(f"no intervals of {statement.view} at this grain: {error}") from None
    if not extended:
        return table
    return Table(tuple(extended[0]), [tuple(row.values()) for row in extended], table.is_cut)


def parquet(settings: Settings, statement: Statement, limit: int) -> bytes:
    """Return the result as a Parquet file, with the types of ClickHouse.

    Raises:
        ClickException: the store rejects the query.
    """
    with _reader(settings, limit, overflow="throw") as client:
        return bytes(client.raw_query(statement.sql, parameters=statement.parameters, fmt="Parquet"))


@contextmanager
def _reader(settings: Settings, limit: int, overflow: str = "break") -> Iterator[Client]:
    """Yield a client of the account that only reads, with limits of rows, time and memory."""
    with connect(settings, database=settings.clickhouse.database, reads_only=True) as client:
        bounds = {"max_execution_time": _SECONDS, "max_memory_usage": _MEMORY_BYTES, "max_result_rows": limit + 1}
        for name, value in {**bounds, "result_overflow_mode": overflow, "readonly": 2}.items():
            client.set_client_setting(name, value)
        try:
            yield client
        except ClickHouseError as error:
            raise click.ClickException(
                f"the store rejects the query: {str(error).splitlines()[0][:300]}; if a view is missing, run "
                "`stepstream store migrate`"
            ) from None


def formatted(table: Table, format_: str) -> str:
    """Return a table as text: `table`, `csv` or `json` (a list of objects)."""
    if format_ == "json":
        rows = [dict(zip(table.columns, map(_plain, row), strict=True)) for row in table.rows]
        return orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS, default=str).decode() + "\n"
    if format_ == "csv":
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(table.columns)
        writer.writerows([["" if value is None else _plain(value) for value in row] for row in table.rows])
        return buffer.getvalue()
    cells = [list(table.columns), *([_cell(value) for value in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "".join(line + "\n" for line in lines)


def description(view: View) -> str:
    """Return the meaning, grain and columns of a view as text."""
    lines = [view.title, view.meaning, "", f"grain    {', '.join(view.grain)}"]
    if view.choices:
        lines.append(f"also by  {', '.join(view.choices)}")
    lines.append("")
    lines += [f"{name:24} {DIMENSIONS[name]}" for name in view.grain]
    lines += [
        f"{column.name:24} {column.meaning}" + (f" [{column.unit}]" if column.unit else "") for column in view.columns
    ]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(_plain(value))


def _plain(value: object) -> object:
    return value.isoformat(sep=" ") if isinstance(value, datetime) else str(value) if isinstance(value, date) else value
