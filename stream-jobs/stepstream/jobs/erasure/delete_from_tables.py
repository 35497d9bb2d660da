"""Delete a person's rows from ClickHouse.

Statements select rows by keys and event ids, not by the person's name: ClickHouse stores the text of a mutation beside
the data, and the name must not stay there. A lightweight `DELETE` on the primary key hides the rows of facts at once;
`remove_hidden` then rewrites their parts, once for all persons of a request. Deletions fire no materialized views: they
mark the hours, so that their rollups are computed again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Protocol

from clickhouse_connect.driver.client import Client

from stepstream.jobs.erasure.findings import Person

_CHUNK = 1000
"""Rows of one statement."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """Tables whose rows have one identity, and how it is found."""

    find_in: str
    """Table that names the person."""
    delete_from: tuple[str, ...]
    """Tables to delete from; the one that is searched is last, so that an interrupted deletion finds the rows again."""
    key: tuple[str, ...]
    """Expressions of the identity: the tenant, the start of a time range in the primary key, and more."""
    nameless: bool
    """True if rows that name nobody belong to the person in the person's own trajectories."""
    dirty: str
    """Name of its hours in `dirty_hours`; empty: no rollup reads it."""


_BUCKET = "toStartOfFiveMinutes(occurred_at)"
_STEPS = _Facts(
    "steps", ("step_contents", "steps"), ("tenant", _BUCKET, "trajectory_id", "step_index", "source_key"), True, "steps"
)
_FEEDBACK = _Facts("feedback", ("feedback",), ("tenant", _BUCKET, "trajectory_id", "source_key"), True, "")
_TRAJECTORIES = _Facts(
    "trajectories", ("trajectories",), ("tenant", "toStartOfHour(opened_at)", "trajectory_id"), False, "trajectories"
)
_FACTS = (_STEPS, _FEEDBACK, _TRAJECTORIES)
_TENANT = "tenant = {tenant:String}"
_IDS = f"{_TENANT} AND trajectory_id IN {{ids:Array(String)}}"
_NAMED = f"{_TENANT} AND user = {{user:String}}"
_HIDDEN = """
SELECT DISTINCT table, partition_id FROM system.parts
WHERE database = currentDatabase() AND active AND has_lightweight_delete AND table IN {tables:Array(String)}
"""


def trajectories_of(client: Client, person: Person) -> set[str]:
    """Return the ids of the trajectories in which the person took part."""
    ids = set()
    for table in ("steps", "feedback", "trajectories"):
        ids |= set(_column(client, f"SELECT DISTINCT trajectory_id FROM {table}", person))
    return ids


def own_trajectories_of(client: Client, person: Person) -> set[str]:
    """Return the ids of the trajectories whose steps name the person."""
    tables = ("steps", "trajectories")
    return {name for t in tables for name in _column(client, f"SELECT DISTINCT trajectory_id FROM {t}", person)}


class RowCounts(Protocol):
    """Counts of deleted rows that survive a kill; `step` names one table and condition."""

    def plan_rows(self, step: str, table: str, present: int) -> None:
        """Record that so many rows are deleted next."""
        ...

    def rows_removed(self, step: str, table: str) -> None:
        """Record that they are deleted."""
        ...


def delete_rows(
    client: Client, person: Person, trajectories: Iterable[str], own: Iterable[str], counts: RowCounts
) -> int:
    """Delete every row of the person and return their number. On return, no query finds the rows.

    Args:
        client: client of a database with the tables.
        person: owner of the rows.
        trajectories: ids of the trajectories in which the person took part.
        own: ids of the trajectories whose steps name the person; rows there that name nobody are deleted too.
        counts: hears of each deletion before and after it.

    Raises:
        ClickHouseError: the store is unavailable or rejects a query; run it again.
    """
    own = sorted(own)
    deleted = _delete_consents(client, person, counts)
    for facts in _FACTS:
        keys = set(_keys(client, facts, _NAMED, person, [()]))
        keys |= set(_keys(client, facts, f"{_IDS} AND user = ''", person, _chunks(own) if facts.nameless else []))
        keys |= set(_keys(client, facts, _IDS, person, [] if facts.nameless else _chunks(sorted(set(trajectories)))))
        deleted += _delete(client, facts, sorted(keys), counts)
    _delete_times(client, person, own)
    _delete_days(client, person)
    return deleted


def remove_hidden(client: Client) -> None:
    """Rewrite the parts with deleted rows. Old parts are gone from the disk after `old_parts_lifetime`.

    Raises:
        ClickHouseError: the store is unavailable; run it again.
    """
    tables = ["trajectory_times", "user_days", *(table for facts in _FACTS for table in facts.delete_from)]
    for table, partition in client.query(_HIDDEN, parameters={"tables": tables}).result_rows:
        client.command(
            f"ALTER TABLE {table} APPLY DELETED MASK IN PARTITION ID {{partition:String}}",
            parameters={"partition": partition},
            settings={"mutations_sync": 2},
        )


def count_rows(client: Client, person: Person, own: Iterable[str]) -> int:
    """Return the number of rows that name the person, or nobody in one of the person's own trajectories."""
    tables = ("steps", "feedback", "trajectories", "consents")
    named: int = sum(_column(client, f"SELECT count() FROM {table}", person)[0] for table in tables)
    nameless = 0
    for facts in (facts for facts in _FACTS if facts.nameless):
        for chunk in _chunks(sorted(own)):
            query = f"SELECT count() FROM {facts.find_in} WHERE {_IDS} AND user = ''"
            [(rows,)] = client.query(query, parameters=_of(person, chunk)).result_rows
            nameless += int(rows)
    return named + nameless


def _of(person: Person, ids: Sequence[str] = ()) -> dict[str, Any]:
    return {"tenant": person.tenant, "user": person.user, "ids": list(ids)}


def _column(client: Client, query: str, person: Person) -> list[Any]:
    return [row[0] for row in client.query(f"{query} WHERE {_NAMED}", parameters=_of(person)).result_rows]


def _keys(
    client: Client, facts: _Facts, where: str, person: Person, chunks: Iterable[Sequence[str]]
) -> Iterator[tuple[Any, ...]]:
    """Yield the identities of the rows that fulfil a condition; times in seconds since the Unix epoch."""
    tenant, time, *others = facts.key
    query = f"SELECT DISTINCT {', '.join((tenant, f'toUnixTimestamp({time})', *others))} FROM {facts.find_in}"
    for chunk in chunks:
        yield from map(tuple, client.query(f"{query} WHERE {where}", parameters=_of(person, chunk)).result_rows)


def _delete(client: Client, facts: _Facts, keys: Sequence[tuple[Any, ...]], counts: RowCounts) -> int:
    hours = sorted({key[1] // 3600 * 3600 for key in keys})
    _mark(client, facts, hours)
    deleted = 0
    for table in facts.delete_from:
        chunks = [(chunk, _count(client, table, facts, chunk)) for chunk in _chunks(keys)]
        rows = sum(rows for _, rows in chunks)
        counts.plan_rows(f"{table} by key", table, rows)
        for chunk, present in chunks:
            if present:
                client.command(f"DELETE FROM {table} WHERE {_is_one_of(facts, chunk)}", parameters=_texts(chunk))
        counts.rows_removed(f"{table} by key", table)
        deleted += rows
    _mark(client, facts, hours)  # again: a refresh may have run since
    return deleted


def _mark(client: Client, facts: _Facts, hours: Sequence[int]) -> None:
    if facts.dirty and hours:
        now = datetime.now(UTC)
        marks = [(facts.dirty, datetime.fromtimestamp(hour, UTC), now) for hour in hours]
        client.insert("dirty_hours", marks, column_names=["of", "hour", "at"])


def _count(client: Client, table: str, facts: _Facts, keys: Sequence[tuple[Any, ...]]) -> int:
    query = f"SELECT count() FROM {table} WHERE {_is_one_of(facts, keys)}"
    [(rows,)] = client.query(query, parameters=_texts(keys)).result_rows
    return int(rows)


def _is_one_of(facts: _Facts, keys: Sequence[tuple[Any, ...]]) -> str:
    """Return the condition that a row has one of the identities; its texts are parameters (`_texts`)."""
    places = {text: f"{{t{number}:String}}" for number, text in enumerate(_distinct_texts(keys))}
    tuples = (
        f"({places[tenant]}, toDateTime({time}, 'UTC'), {places[name]}{''.join(f', {number}' for number in numbers)})"
        for tenant, time, name, *numbers in keys
    )
    return f"({', '.join(facts.key)}) IN ({', '.join(tuples)})"


def _texts(keys: Sequence[tuple[Any, ...]]) -> dict[str, str]:
    return {f"t{number}": text for number, text in enumerate(_distinct_texts(keys))}


def _distinct_texts(keys: Sequence[tuple[Any, ...]]) -> list[str]:
    return list(dict.fromkeys(text for key in keys for text in (key[0], key[2])))


def _delete_times(client: Client, person: Person, own: Sequence[str]) -> None:
    """Delete the times of the person's own trajectories; those with steps of others get the times of these."""
    for chunk in _chunks(own):
        client.command(
            f"DELETE FROM trajectory_times WHERE {_TENANT} AND trajectory_key IN "
            "(SELECT arrayJoin(arrayMap(id -> sipHash64(id), {ids:Array(String)})))",
            parameters=_of(person, chunk),
        )
        client.command(
            "INSERT INTO trajectory_times SELECT sipHash64(trajectory_id) AS trajectory_key, tenant, min(occurred_at), "
            f"max(occurred_at) FROM steps WHERE {_IDS} GROUP BY trajectory_key, tenant",
            parameters=_of(person, chunk),
        )


def _delete_days(client: Client, person: Person) -> None:
    """Delete the days on which the person was active: their key is a digest of the name."""
    # ClickHouse keeps the statement, so it must not contain the name.
    for (key,) in client.query("SELECT sipHash64({user:String})", parameters=_of(person)).result_rows:
        client.command(f"DELETE FROM user_days WHERE {_TENANT} AND user_key = {key}", parameters=_of(person))


def _delete_consents(client: Client, person: Person, counts: RowCounts) -> int:
    events = _column(client, "SELECT event_id FROM consents", person)
    counts.plan_rows("consents by event_id", "consents", len(events))
    for chunk in _chunks(events):
        client.command(
            f"ALTER TABLE consents DELETE WHERE {_TENANT} AND event_id IN {{ids:Array(String)}}",
            parameters={"ids": chunk, "tenant": person.tenant},
            settings={"mutations_sync": 2},
        )
    counts.rows_removed("consents by event_id", "consents")
    return len(events)


def _chunks(items: Sequence[Any]) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk
