"""Identify rows of the tables of facts, and select them by their identities in a statement's text. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

KEYS_BYTES = 240_000
"""Bytes of the keys in one statement: its text stays below ClickHouse's limit of 256 KiB."""
_NUMBERS_BYTES = 40
"""Longest text of the numbers of a key."""
_KEYS_TYPE = "Array(Tuple(String, UInt32, String, Array(Array(UInt64))))"
Key = tuple[Any, ...]
"""Values of a row's identity, as `Facts.key`; the time in Unix seconds."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Tables whose rows have one identity, and how it is found."""

    find_in: str
    """Table that names the person."""
    delete_from: tuple[str, ...]
    """Tables to delete from; the one that is searched is last, so that an interrupted deletion finds the rows again."""
    key: tuple[str, ...]
    """Expressions of the identity: the tenant, the start of a time range in the primary key, the trajectory, and
    numbers."""
    short: str
    """Expression of a number (`UInt64`) that tells nearly all rows apart, and costs little to compute."""
    time: str
    """Column by which the time range of the primary key is computed."""
    bucket_s: int
    """Seconds of the time range of the primary key. 0: `trajectory_times` has no times of these rows."""
    nameless: bool
    """True if rows that name nobody belong to the person in the person's own trajectories. False: all rows about a
    trajectory in which the person took part do."""
    dirty: str
    """Name of its hours in `dirty_hours`; empty: no rollup reads it."""


_BUCKET = "toStartOfFiveMinutes(occurred_at)"
_STEPS = Facts(
    find_in="steps",
    delete_from=("step_contents", "steps"),
    key=("tenant", _BUCKET, "trajectory_id", "step_index", "source_key"),
    short="source_key",
    time="occurred_at",
    bucket_s=300,
    nameless=True,
    dirty="steps",
)
_FEEDBACK = Facts(
    find_in="feedback",
    delete_from=("feedback",),
    key=("tenant", _BUCKET, "trajectory_id", "source_key"),
    short="source_key",
    time="occurred_at",
    bucket_s=0,
    nameless=True,
    dirty="",
)
_TRAJECTORIES = Facts(
    find_in="trajectories",
    delete_from=("trajectories",),
    key=("tenant", "toStartOfHour(opened_at)", "trajectory_id"),
    # One number: each `IN` of a mutation costs the plan of a subquery for each part.
    short="cityHash64(opened_at, ended_at)",
    time="opened_at",
    bucket_s=3600,
    nameless=False,
    dirty="trajectories",
)
FACTS = (_STEPS, _FEEDBACK, _TRAJECTORIES)


def columns(facts: Facts) -> str:
    """Return the columns of a query for identities."""
    tenant, time, *others = facts.key
    return ", ".join((tenant, f"toUnixTimestamp({time})", *others))


def short_condition(facts: Facts, tenants: Iterable[str] | None, numbers: str) -> str:
    """Return a condition that holds for each row that has one of the tenants and a short number of a set.

    A few rows of others may have these too. A condition for fewer tenants or numbers holds for no further row: a query
    with the condition finds all others' rows that a deletion with it could reach.

    Args:
        facts: the rows' tables.
        tenants: None: any tenant. To compare those of all rows costs a quarter of the hiding of steps.
        numbers: what follows `IN`, of `number_sets`.
    """
    is_one = f"{facts.short} IN {numbers}"
    return is_one if tenants is None else f"{tenant_condition(tenants)} AND {is_one}"


def tenant_condition(tenants: Iterable[str]) -> str:
    """Return a condition that a row has one of the tenants."""
    return f"tenant IN ({', '.join(map(_quoted, sorted(set(tenants))))})"


def conditions(facts: Facts, keys: Iterable[Key]) -> Iterator[str]:
    """Yield conditions of which one holds for each row that has one of the identities; each is of a range of time.

    Statements over one range after the other change each day once. The keys are one literal: ClickHouse analyzes a
    mutation again for each part, and thousands of literals cost it more than rewriting a small part.
    """
    places: dict[tuple[str, int, str], list[list[int]]] = {}
    size = 0
    for key in sorted(keys, key=lambda key: (key[1], key)):
        place, numbers = key[:3], list(key[3:])
        added = _NUMBERS_BYTES + (0 if place in places else len(_literal(place)))
        if places and size + added > KEYS_BYTES:
            yield _is_one_of(facts, places)
            places, size, added = {}, 0, _NUMBERS_BYTES + len(_literal(place))
        places.setdefault(place, []).append(numbers)
        size += added
    if places:
        yield _is_one_of(facts, places)


def _is_one_of(facts: Facts, places: Mapping[tuple[str, int, str], list[list[int]]]) -> str:
    numbers = "".join(f", number[{place}]" for place in range(1, len(facts.key) - 2))
    keys = _literal([(*place, of) for place, of in places.items()])
    return (
        f"({', '.join(facts.key)}) IN (SELECT place.1, toDateTime(place.2, 'UTC'), place.3{numbers} FROM "
        f"(SELECT arrayJoin(JSONExtract({keys}, '{_KEYS_TYPE}')) AS place) ARRAY JOIN place.4 AS number)"
    )


def _literal(value: Any) -> str:
    """Return JSON as a literal of SQL."""
    return _quoted(orjson.dumps(value).decode())


def _quoted(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
