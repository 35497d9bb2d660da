"""What others' records carry of what ours do: the section of `docs/protocol.md` that `comparison.toml` holds."""

import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """Some fields of a record, and what says the same elsewhere."""

    record: str
    fields: tuple[str, ...]
    what: str
    elsewhere: dict[str, str]
    """Name of the field by other record, of those that have one."""


class Theirs(NamedTuple):
    """What others have fields for."""

    what: str
    ours: str
    """Where ours carry it, or that they do not."""
    elsewhere: dict[str, str]


class Comparison(NamedTuple):
    """The whole table."""

    others: dict[str, dict[str, str]]
    """Title, and what was read, by other record."""
    rows: tuple[Row, ...]
    theirs: tuple[Theirs, ...]
    plumbing: dict[str, list[str]]
    """By record of ours, the fields that are not compared."""


@cache
def comparison() -> Comparison:
    """The data."""
    data = tomllib.loads(Path(__file__).with_name("comparison.toml").read_text(encoding="utf-8"))
    others = data["others"]
    rows = tuple(
        Row(row["record"], tuple(row["fields"]), row["what"], {name: row[name] for name in others if name in row})
        for row in data["row"]
    )
    theirs = tuple(
        Theirs(row["what"], row["ours"], {name: row[name] for name in others if name in row}) for row in data["theirs"]
    )
    return Comparison(others, rows, theirs, data["plumbing"])


def section() -> list[str]:
    """Lines of Markdown."""
    others, rows, theirs, plumbing = comparison()
    titles = [other["title"] for other in others.values()]
    lines = [
        "## Beside other records",
        "",
        "Which field of others says what ours say; – means none. A place for anything at all, as ATIF's `extra`, ADP's",
        "`details` or a `metadata`, does not count: `stepstream export` puts there what has no field.",
        "",
        *(f"- {other['title']}: {other['read']}." for other in others.values()),
    ]
    for record in dict.fromkeys(row.record for row in rows):
        lines += ["", f"| {record} | what it says | {' | '.join(titles)} |", "|" + "---|" * (len(titles) + 2)]
        for row in rows:
            if row.record == record:
                names = ", ".join(f"`{field}`" for field in row.fields)
                lines.append(f"| {names} | {row.what} | {_cells(others, row.elsewhere)} |")
        left = ", ".join(f"`{field}`" for field in plumbing[record])
        if left:
            lines += ["", f"Not compared, since they serve the log or repeat what is said above: {left}."]
    only = [
        f"- {row.record} {', '.join(f'`{field}`' for field in row.fields)}: {row.what}."
        for row in rows
        if not row.elsewhere
    ]
    back = [f"| {row.what} | {row.ours} | {_cells(others, row.elsewhere)} |" for row in theirs]
    head = [f"| what it says | ours | {' | '.join(titles)} |", "|" + "---|" * (len(titles) + 2)]
    lines += [
        "",
        "Only ours say:",
        "",
        *only,
        "",
        "The other way round, what others have fields for and ours have not,",
    ]
    return [*lines, "or have elsewhere:", "", *head, *back]


def _cells(others: Iterable[str], elsewhere: dict[str, str]) -> str:
    return " | ".join(elsewhere.get(name, "–") for name in others)
