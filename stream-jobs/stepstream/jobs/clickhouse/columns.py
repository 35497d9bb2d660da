"""Describe a table as functions from a record to the values of its columns. Pure."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import orjson

Record = Mapping[str, Any]
Row = tuple[object, ...]
Column = Callable[[Record], object]


@dataclass(frozen=True)
class Table:
    """Table, and the function of each column."""

    name: str
    columns: tuple[str, ...]
    _values: tuple[Column, ...]

    def row(self, record: Record) -> Row:
        """Return the values of a record, in the order of `columns`."""
        return tuple([value(record) for value in self._values])


def table(name: str, plain: str, **columns: Column) -> Table:
    """Define a table: `plain` names the columns that are fields of the record (separated by spaces), `columns` the
    others. `__` in a name of `columns` is a dot: the column of a nested array.
    """
    fields = plain.split()
    values: list[Column] = [itemgetter(field) for field in fields]
    names = [name.replace("__", ".") for name in columns]
    return Table(name, (*fields, *names), (*values, *columns.values()))


def governed(field: str, otherwise: object) -> Column:
    """Read a field of the record's Governance; `otherwise` if it has none."""

    def value(record: Record) -> object:
        governed = record["governed"]
        return otherwise if governed is None else governed[field]

    return value


def source_event_id(record: Record) -> str:
    """Return the id of the event that was governed, or the record's own."""
    governed = record["governed"]
    return str(record["event_id"] if governed is None else governed["source_event_id"])


def key_of(event_id: str, size: int) -> int:
    """Return the first `size` bytes of the MD5 of an id, little-endian; 0017_move_rows.sql has the same in SQL."""
    return int.from_bytes(hashlib.md5(event_id.encode(), usedforsecurity=False).digest()[:size], "little")


def source_key(record: Record) -> int:
    """Return 64 bits that identify the event that was governed, within its trajectory."""
    return key_of(source_event_id(record), 8)


def decided_tenant(record: Record) -> object:
    """Return the tenant of a decision; empty: an earlier release decided, which named none."""
    return record["tenant"] or ""


def text(field: str) -> Column:
    """Read a field; empty for null."""
    return lambda record: record[field] or ""


def number(field: str) -> Column:
    """Read a field; -1 for null."""
    return lambda record: -1 if record[field] is None else record[field]


def millis(field: str) -> Column:
    """Read a time in microseconds as milliseconds, the unit of DateTime64(3)."""
    return lambda record: record[field] // 1000


def json(field: str) -> Column:
    """Encode a field as JSON."""
    return lambda record: orjson.dumps(record[field]).decode()


def size(field: str) -> Column:
    """Count the elements of a field."""
    return lambda record: len(record[field])


def each(items: str, field: str) -> Column:
    """Read a field of every element of `items`."""
    return lambda record: [item[field] for item in record[items]]
