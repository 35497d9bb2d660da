"""Delete a person's rows from ClickHouse.

Mutations select rows by event and trajectory ids, not by the person's name: ClickHouse stores the text of a mutation
beside the data, and the name must not stay there. `ALTER TABLE … DELETE` rewrites the parts; a lightweight `DELETE`
would only hide the rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from clickhouse_connect.driver.client import Client

from stepstream.jobs.erasure.findings import Person

_CHUNK = 2000
_BY_EVENT = ("steps", "feedback", "consents")
"""Tables whose rows name a person."""
_WITHOUT_NAME = ("steps", "feedback")
"""Tables whose rows may name nobody, in a trajectory of a person."""
_TENANT = "AND tenant = {tenant:String}"
_IDS, _NOBODY = "trajectory_id IN {ids:Array(String)}", f"AND user IS NULL {_TENANT}"
_BY_TRAJECTORY = ("trajectory_steps", "reward_components", "trajectories")
"""Tables with rows about a whole trajectory. The one that names its person is last, so that another run finds it."""
_OF_TENANT = "AND tenant IN ({tenant:String}, '')"
"""Empty: a row of a release without tenants there, whose trajectory has no label."""


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
    deleted = 0
    for table in _BY_EVENT:
        events = _column(client, f"SELECT event_id FROM {table}", person)
        deleted += _delete(client, table, "event_id", events, person, counts, _TENANT)
    for table in _WITHOUT_NAME:
        deleted += _delete(client, table, "trajectory_id", sorted(own), person, counts, _NOBODY)
    for table in _BY_TRAJECTORY:
        deleted += _delete(client, table, "trajectory_id", sorted(set(trajectories)), person, counts, _OF_TENANT)
    return deleted


def count_rows(client: Client, person: Person, own: Iterable[str]) -> int:
    """Return the number of rows that name the person, or nobody in one of the person's own trajectories."""
    tables = ("steps", "feedback", "trajectories", "consents")
    named: int = sum(_column(client, f"SELECT count() FROM {table}", person)[0] for table in tables)
    chunks = list(_chunks(sorted(own)))
    counts = (_count(client, table, f"{_IDS} {_NOBODY}", chunk, person) for table in _WITHOUT_NAME for chunk in chunks)
    return named + sum(counts)


def _column(client: Client, query: str, person: Person) -> list[Any]:
    where = " WHERE tenant = {tenant:String} AND user = {user:String}"
    result = client.query(query + where, parameters={"tenant": person.tenant, "user": person.user})
    return [row[0] for row in result.result_rows]


def _count(client: Client, table: str, where: str, ids: Sequence[str], person: Person) -> int:
    parameters = {"ids": ids, "tenant": person.tenant}
    [(rows,)] = client.query(f"SELECT count() FROM {table} WHERE {where}", parameters=parameters).result_rows
    return int(rows)


def _delete(
    client: Client, table: str, column: str, ids: Sequence[str], person: Person, counts: RowCounts, condition: str
) -> int:
    where, step = f"{column} IN {{ids:Array(String)}} {condition}", f"{table} by {column}"
    chunks = [(chunk, _count(client, table, where, chunk, person)) for chunk in _chunks(ids)]
    deleted = sum(rows for _, rows in chunks)
    counts.plan_rows(step, table, deleted)
    for chunk, rows in chunks:
        if rows:
            client.command(
                f"ALTER TABLE {table} DELETE WHERE {where}",
                parameters={"ids": chunk, "tenant": person.tenant},
                settings={"mutations_sync": 2},
            )
    counts.rows_removed(step, table)
    return deleted


def _chunks(ids: Sequence[str]) -> Iterator[list[str]]:
    iterator = iter(ids)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk
