"""Delete the rows of some persons from ClickHouse, in one pass over each table.

Statements that change a table select rows by keys and event ids, not by the persons' names: ClickHouse stores the text
of a mutation beside the data, and the names must not stay there. A lightweight `DELETE` hides the rows from every
query; `clickhouse/hidden_rows.py` rewrites the parts later, once for all erasures of a day. To hide a row by one column
of its identity takes a quarter of the time that the whole identity takes (docs/measured/store.md): the rest of the
identity is compared before, in a query. Deletions fire no materialized views: they mark the hours, so that their
rollups are computed again.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Protocol

import orjson
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.external import ExternalData

from stepstream.jobs.erasure.findings import Person

_CHUNK = 5000
"""Names of one statement."""
_KEYS_BYTES = 240_000
"""Bytes of the keys in one statement: its text stays below ClickHouse's limit of 256 KiB."""
_NUMBERS_BYTES = 40
"""Longest text of the numbers of a key."""
_KEYS_TYPE = "Array(Tuple(String, UInt32, String, Array(Array(UInt64))))"
_MUTATION = {
    "mutations_sync": 2,
    "lightweight_deletes_sync": 2,
    # Replicated tables refuse subqueries, which may differ among replicas. These are of constants.
    "allow_nondeterministic_mutations": 1,
}


@dataclass(frozen=True, slots=True)
class _Facts:
    """Tables whose rows have one identity, and how it is found."""

    find_in: str
    """Table that names the person."""
    delete_from: tuple[str, ...]
    """Tables to delete from; the one that is searched is last, so that an interrupted deletion finds the rows again."""
    key: tuple[str, ...]
    """Expressions of the identity: the tenant, the start of a time range in the primary key, the trajectory, and
    numbers."""
    short: int
    """Index, in `key`, of the column that tells nearly all rows apart."""
    nameless: bool
    """True if rows that name nobody belong to the person in the person's own trajectories. False: all rows about a
    trajectory in which the person took part do."""
    dirty: str
    """Name of its hours in `dirty_hours`; empty: no rollup reads it."""


_BUCKET = "toStartOfFiveMinutes(occurred_at)"
_STEPS = _Facts(
    find_in="steps",
    delete_from=("step_contents", "steps"),
    key=("tenant", _BUCKET, "trajectory_id", "step_index", "source_key"),
    short=4,
    nameless=True,
    dirty="steps",
)
_FEEDBACK = _Facts(
    find_in="feedback",
    delete_from=("feedback",),
    key=("tenant", _BUCKET, "trajectory_id", "source_key"),
    short=3,
    nameless=True,
    dirty="",
)
_TRAJECTORIES = _Facts(
    find_in="trajectories",
    delete_from=("trajectories",),
    key=("tenant", "toStartOfHour(opened_at)", "trajectory_id"),
    short=2,
    nameless=False,
    dirty="trajectories",
)
_FACTS = (_STEPS, _FEEDBACK, _TRAJECTORIES)
# One column first: few rows pass it, and only these are compared in full.
_PERSONS = "user IN (SELECT name FROM persons) AND (tenant, user) IN (SELECT tenant, name FROM persons)"
_ABOUT = "trajectory_id IN (SELECT name FROM about) AND (tenant, trajectory_id) IN (SELECT tenant, name FROM about)"
_PERSONS_OR_NAMELESS = f"""
user IN (SELECT name FROM persons UNION ALL SELECT '') AND (({_PERSONS}) OR (user = '' AND {_ABOUT}))
"""
_Pair = tuple[str, str]
_Key = tuple[Any, ...]


class RowCounts(Protocol):
    """Counts of deleted rows that survive a kill; `step` names one table and condition."""

    def plan_rows(self, step: str, table: str, present: int) -> None:
        """Record that so many rows are deleted next."""
        ...

    def rows_removed(self, step: str, table: str) -> None:
        """Record that they are deleted."""
        ...


@dataclass(frozen=True, slots=True)
class PersonTrajectories:
    """Ids of a person's trajectories."""

    joined: set[str] = field(default_factory=set)
    """Those in which the person took part, at least by feedback."""
    own: set[str] = field(default_factory=set)
    """Those whose steps name the person; rows there that name nobody belong to the person too."""


@dataclass(frozen=True, slots=True)
class Target:
    """A person whose rows are deleted."""

    person: Person
    trajectories: PersonTrajectories
    counts: RowCounts
    """Hears of each deletion before and after it."""


def trajectories_of(client: Client, persons: Collection[Person]) -> dict[Person, PersonTrajectories]:
    """Return the trajectories of each person.

    Raises:
        ClickHouseError: the store is unavailable.
    """
    found = {person: PersonTrajectories() for person in persons}
    for table in ("steps", "feedback", "trajectories"):
        query = f"SELECT DISTINCT tenant, user, trajectory_id FROM {table} WHERE {_PERSONS}"
        for tenant, user, name in _select(client, query, persons=_names(persons)):
            of = found[Person(tenant, user)]
            of.joined.add(name)
            if table != "feedback":
                of.own.add(name)
    return found


def delete_rows(client: Client, targets: Sequence[Target]) -> int:
    """Delete every row of the persons and return their number. On return, no query finds the rows.

    The rows' bytes stay in their parts until these are rewritten (`clickhouse/hidden_rows.py`).

    Raises:
        ClickHouseError: the store is unavailable or rejects a query; run it again.
    """
    deleted = _delete_consents(client, targets)
    for facts in _FACTS:
        deleted += _delete(client, facts, _owners(client, facts, targets), targets)
    _delete_times(client, targets)
    _delete_days(client, targets)
    return deleted


def count_rows(client: Client, targets: Sequence[Target]) -> int:
    """Return the number of rows that name one of the persons, or nobody in one of their own trajectories."""
    rows = 0
    persons, own = _names(target.person for target in targets), _pairs(targets, lambda target: target.trajectories.own)
    for table in ("trajectories", "consents"):
        [(named,)] = _select(client, f"SELECT count() FROM {table} WHERE {_PERSONS}", persons=persons)
        rows += int(named)
    for facts in (facts for facts in _FACTS if facts.nameless):
        query = f"SELECT count() FROM {facts.find_in} WHERE {_PERSONS_OR_NAMELESS}"
        [(found,)] = _select(client, query, persons=persons, about=own)
        rows += int(found)
    return rows


def _names(persons: Iterable[Person]) -> list[_Pair]:
    return [(person.tenant, person.user) for person in persons]


def _pairs(targets: Sequence[Target], ids_of: Callable[[Target], Iterable[str]]) -> dict[_Pair, int]:
    """Return the first of the targets to which each (tenant, trajectory) belongs."""
    owners: dict[_Pair, int] = {}
    for number, target in enumerate(targets):
        for name in ids_of(target):
            owners.setdefault((target.person.tenant, name), number)
    return owners


def _select(client: Client, query: str, **tables: Iterable[_Pair]) -> Sequence[Sequence[Any]]:
    """Query with temporary tables of (tenant, name), which travel in the body of the request."""
    external = ExternalData()
    for name, pairs in tables.items():
        lines = b"\n".join(map(orjson.dumps, pairs))
        external.add_file(file_name=name, data=lines, fmt="JSONCompactEachRow", structure="tenant String, name String")
    return client.query(query, external_data=external).result_rows


def _owners(client: Client, facts: _Facts, targets: Sequence[Target]) -> dict[_Key, int]:
    """Return the identities of the persons' rows, times in Unix seconds, each with the index of its owner."""
    named = {name: number for number, name in enumerate(_names(target.person for target in targets))}
    about = _pairs(targets, lambda t: t.trajectories.own if facts.nameless else t.trajectories.joined)
    where = _PERSONS_OR_NAMELESS if facts.nameless else f"({_PERSONS}) OR ({_ABOUT})"
    query = f"SELECT DISTINCT user, {_columns(facts)} FROM {facts.find_in} WHERE {where}"
    found: dict[_Key, int] = {}
    for user, *key in _select(client, query, persons=named, about=about):
        owner = named.get((key[0], user))
        found[tuple(key)] = about[key[0], key[2]] if owner is None else owner
    return found


def _delete(client: Client, facts: _Facts, owners: Mapping[_Key, int], targets: Sequence[Target]) -> int:
    hours = sorted({key[1] // 3600 * 3600 for key in owners})
    _mark(client, facts, hours)
    deleted = 0
    for table in facts.delete_from:
        present, shared = _present(client, table, facts, owners)
        for number, target in enumerate(targets):
            target.counts.plan_rows(f"{table} by key", table, present[number])
        if present:
            _remove(client, table, _short_conditions(facts, owners.keys() - shared))
            _remove(client, table, _conditions(facts, shared))
        for target in targets:
            target.counts.rows_removed(f"{table} by key", table)
        deleted += present.total()
    _mark(client, facts, hours)  # again: a refresh may have run since
    return deleted


def _mark(client: Client, facts: _Facts, hours: Sequence[int]) -> None:
    if facts.dirty and hours:
        now = datetime.now(UTC)
        marks = [(facts.dirty, datetime.fromtimestamp(hour, UTC), now) for hour in hours]
        client.insert("dirty_hours", marks, column_names=["of", "hour", "at"])


def _present(client: Client, table: str, facts: _Facts, owners: Mapping[_Key, int]) -> tuple[Counter[int], set[_Key]]:
    """Return the number of rows of each owner, and the identities of which others' rows share the short column."""
    rows: Counter[int] = Counter()
    foreign = set()
    for where in _short_conditions(facts, owners):
        query = f"SELECT {_columns(facts)}, count() FROM {table} WHERE {where} GROUP BY {', '.join(facts.key)}"
        for *key, present in client.query(query).result_rows:
            if (owner := owners.get(tuple(key))) is None:
                foreign.add(key[facts.short])
            else:
                rows[owner] += int(present)
    return rows, {key for key in owners if key[facts.short] in foreign} if foreign else set()


def _columns(facts: _Facts) -> str:
    tenant, time, *others = facts.key
    return ", ".join((tenant, f"toUnixTimestamp({time})", *others))


def _remove(client: Client, table: str, conditions: Iterable[str], parameters: Mapping[str, Any] | None = None) -> None:
    """Hide the rows for which one of the conditions holds; `parameters` are those of the conditions."""
    for where in conditions:
        client.command(f"DELETE FROM {table} WHERE {where}", parameters=dict(parameters or {}), settings=_MUTATION)


def _short_conditions(facts: _Facts, keys: Iterable[_Key]) -> Iterator[str]:
    """Yield conditions of which one holds for each row that has the tenant and the short column of an identity.

    As in `_conditions`. A few rows of others may share both.
    """
    column = facts.key[facts.short]
    of_type = "String" if column == "trajectory_id" else "UInt64"
    tenants: set[str] = set()
    values: list[Any] = []
    size = 0

    def condition() -> str:
        return (
            f"tenant IN ({', '.join(map(_quoted, sorted(tenants)))}) AND "
            f"{column} IN (SELECT arrayJoin(JSONExtract({_literal(values)}, 'Array({of_type})')))"
        )

    for key in sorted(keys, key=lambda key: (key[1], key)):
        value = key[facts.short]
        added = len(_literal(value)) + 2 + (0 if key[0] in tenants else len(_quoted(key[0])))
        if values and size + added > _KEYS_BYTES:
            yield condition()
            tenants, values, size = set(), [], 0
        tenants.add(key[0])
        values.append(value)
        size += added
    if values:
        yield condition()


def _conditions(facts: _Facts, keys: Iterable[_Key]) -> Iterator[str]:
    """Yield conditions of which one holds for each row that has one of the identities; each is of a range of time.

    Statements over one range after the other change each day once. The keys are one literal: ClickHouse analyzes a
    mutation again for each part, and thousands of literals cost it more than rewriting a small part.
    """
    places: dict[tuple[str, int, str], list[list[int]]] = {}
    size = 0
    for key in sorted(keys, key=lambda key: (key[1], key)):
        place, numbers = key[:3], list(key[3:])
        added = _NUMBERS_BYTES + (0 if place in places else len(_literal(place)))
        if places and size + added > _KEYS_BYTES:
            yield _is_one_of(facts, places)
            places, size, added = {}, 0, _NUMBERS_BYTES + len(_literal(place))
        places.setdefault(place, []).append(numbers)
        size += added
    if places:
        yield _is_one_of(facts, places)


def _is_one_of(facts: _Facts, places: Mapping[tuple[str, int, str], list[list[int]]]) -> str:
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


def _delete_times(client: Client, targets: Sequence[Target]) -> None:
    """Delete the times of the persons' own trajectories; those with steps of others get the times of these."""
    own = sorted(_pairs(targets, lambda target: target.trajectories.own))
    for chunk in _chunks(own):
        names = {"tenants": [tenant for tenant, _ in chunk], "names": [name for _, name in chunk]}
        where = (
            "(trajectory_key, tenant) IN (SELECT arrayJoin(arrayZip(arrayMap("
            "name -> sipHash64(name), {names:Array(String)}), {tenants:Array(String)})))"
        )
        _remove(client, "trajectory_times", [where], parameters=names)
        client.command(
            "INSERT INTO trajectory_times SELECT sipHash64(trajectory_id) AS trajectory_key, tenant, min(occurred_at), "
            "max(occurred_at) FROM steps WHERE trajectory_id IN {names:Array(String)} AND (tenant, trajectory_id) IN "
            "(SELECT arrayJoin(arrayZip({tenants:Array(String)}, {names:Array(String)}))) "
            "GROUP BY trajectory_key, tenant",
            parameters=names,
        )


def _delete_days(client: Client, targets: Sequence[Target]) -> None:
    """Delete the days on which the persons were active: their keys are digests of the names."""
    # ClickHouse keeps the statement, so it must not contain the names.
    persons = _names(target.person for target in targets)
    keys = list(_select(client, "SELECT tenant, sipHash64(name) FROM persons", persons=persons))
    for chunk in _chunks(keys):
        where = "(tenant, user_key) IN (SELECT arrayJoin(arrayZip({tenants:Array(String)}, {keys:Array(UInt64)})))"
        given = {"tenants": [tenant for tenant, _ in chunk], "keys": [key for _, key in chunk]}
        _remove(client, "user_days", [where], parameters=given)


def _delete_consents(client: Client, targets: Sequence[Target]) -> int:
    owners = {name: number for number, name in enumerate(_names(target.person for target in targets))}
    events = _select(client, f"SELECT event_id, tenant, user FROM consents WHERE {_PERSONS}", persons=owners)
    present = Counter(owners[tenant, user] for _, tenant, user in events)
    for number, target in enumerate(targets):
        target.counts.plan_rows("consents by event_id", "consents", present[number])
    for chunk in _chunks([event_id for event_id, *_ in events]):
        client.command(
            "ALTER TABLE consents DELETE WHERE event_id IN {ids:Array(String)}",
            parameters={"ids": chunk},
            settings={"mutations_sync": 2},
        )
    for target in targets:
        target.counts.rows_removed("consents by event_id", "consents")
    return len(events)


def _chunks(items: Sequence[Any]) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk
