"""What a table is to its writer: its columns, and how a record gives each of them. Pure."""

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
    """A table and how a record gives each of its columns."""

    name: str
    columns: tuple[str, ...]
    _values: tuple[Column, ...]

    def row(self, record: Record) -> Row:
        """The record's values, in the order of `columns`."""
        return tuple([value(record) for value in self._values])


def table(name: str, plain: str, **columns: Column) -> Table:
    """A table whose `plain` columns (names with spaces between) are fields of the record, and the others worked out."""
    fields = plain.split()
    values: list[Column] = [itemgetter(field) for field in fields]
    return Table(name, (*fields, *columns), (*values, *columns.values()))


def governed(field: str, otherwise: object) -> Column:
    """A field of the record's Governance; `otherwise` where it has none."""

    def value(record: Record) -> object:
        governed = record["governed"]
        return otherwise if governed is None else governed[field]

    return value


def policy_version(pick: Callable[..., int]) -> Column:
    """The lowest or highest version of the policy spans, by `min` or `max`; None without a span."""

    def value(record: Record) -> int | None:
        return pick((span["version"] for span in record["policy_spans"]), default=None)

    return value


def source_event_id(record: Record) -> object:
    """The id of the event that was governed, or the record's own."""
    governed = record["governed"]
    return record["event_id"] if governed is None else governed["source_event_id"]


def components(step: Record) -> dict[str, float]:
    """The weighted sum of each component of a labelled step, by name."""
    terms: dict[str, float] = {}
    for component in step["components"]:
        name = component["name"]
        terms[name] = terms.get(name, 0.0) + component["value"] * component["weight"]
    return terms


def json(field: str) -> Column:
    """A field as JSON."""
    return lambda record: orjson.dumps(record[field]).decode()


def size(field: str) -> Column:
    """How many things a field holds."""
    return lambda record: len(record[field])


def of_label(field: str) -> Column:
    """A field of the label that a reward component is of."""
    return lambda term: term["label"][field]


def each(field: str) -> Column:
    """A field of every component of a ComponentStats record."""
    return lambda record: [component[field] for component in record["components"]]
