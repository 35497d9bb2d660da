"""Takes from ClickHouse the rows of a person.

Rows are deleted by what they are (event and trajectory ids), not by whose they are: ClickHouse writes the text of a
mutation beside the data, and the person's name must not stay there. `ALTER TABLE … DELETE` rewrites the parts;
a lightweight `DELETE` would only hide the rows in them.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from clickhouse_connect.driver.client import Client

from stepstream.jobs.erasure.find_records import Person

_CHUNK = 2000
_BY_EVENT = ("steps", "feedback", "consents")
"""Tables whose rows name a person."""
_UNNAMED = ("steps", "feedback")
"""Tables whose rows may name nobody, in a trajectory that is somebody's."""
_TENANT = "AND tenant = {tenant:String}"
_IDS, _NOBODY = "trajectory_id IN {ids:Array(String)}", f"AND user IS NULL {_TENANT}"
_BY_TRAJECTORY = ("trajectory_steps", "reward_components", "trajectories")
"""Tables whose rows tell of a trajectory in which a person took part; the one that names its tenant last."""


def trajectories_of(client: Client, person: Person) -> set[str]:
    """Ids of the trajectories in which they took part."""
    found = set()
    for table in ("steps", "feedback", "trajectories"):
        found |= set(_column(client, f"SELECT DISTINCT trajectory_id FROM {table}", person))
    return found


def own_of(client: Client, person: Person) -> set[str]:
    """Ids of the trajectories whose steps name them."""
    tables = ("steps", "trajectories")
    return {name for t in tables for name in _column(client, f"SELECT DISTINCT trajectory_id FROM {t}", person)}


def delete_rows(client: Client, person: Person, trajectories: Iterable[str], own: Iterable[str]) -> int:
    """Deletes every row of theirs; returns how many there were. When it returns, no query finds them any more.

    Args:
        client: of a database with the tables.
        person: whose.
        trajectories: in which they took part.
        own: those whose steps name them: what names nobody there goes too, what names somebody else stays.

    Raises:
        ClickHouseError: the store refuses or goes away; run it again.
    """
    deleted = 0
    for table in _BY_EVENT:
        events = _column(client, f"SELECT event_id FROM {table}", person)
        deleted += _delete(client, table, "event_id", events, person, _TENANT)
    for table in _UNNAMED:
        deleted += _delete(client, table, "trajectory_id", sorted(own), person, _NOBODY)
    mine = sorted(set(trajectories) - _of_others(client, person, trajectories))
    for table in _BY_TRAJECTORY:
        deleted += _delete(client, table, "trajectory_id", mine, person)
    return deleted


def rows_left(client: Client, person: Person, own: Iterable[str]) -> int:
    """How many rows name them, or nobody in a trajectory of theirs."""
    tables = ("steps", "feedback", "trajectories", "consents")
    named: int = sum(_column(client, f"SELECT count() FROM {table}", person)[0] for table in tables)
    chunks = list(_chunks(sorted(own)))
    unnamed = (_count(client, table, f"{_IDS} {_NOBODY}", chunk, person) for table in _UNNAMED for chunk in chunks)
    return named + sum(unnamed)


def _of_others(client: Client, person: Person, trajectories: Iterable[str]) -> set[str]:
    """Which of the trajectories are another tenant's: anybody may say something about a trajectory by its name."""
    query = f"SELECT DISTINCT trajectory_id FROM trajectories WHERE {_IDS} AND tenant != {{tenant:String}}"
    found: set[str] = set()
    for chunk in _chunks(sorted(trajectories)):
        rows = client.query(query, parameters={"ids": chunk, "tenant": person.tenant}).result_rows
        found |= {name for (name,) in rows}
    return found


def _column(client: Client, query: str, person: Person) -> list[Any]:
    whose = " WHERE tenant = {tenant:String} AND user = {user:String}"
    result = client.query(query + whose, parameters={"tenant": person.tenant, "user": person.user})
    return [row[0] for row in result.result_rows]


def _count(client: Client, table: str, where: str, ids: Sequence[str], person: Person) -> int:
    parameters = {"ids": ids, "tenant": person.tenant}
    [(rows,)] = client.query(f"SELECT count() FROM {table} WHERE {where}", parameters=parameters).result_rows
    return int(rows)


def _delete(client: Client, table: str, column: str, ids: Sequence[str], person: Person, which: str = "") -> int:
    deleted = 0
    for chunk in _chunks(ids):
        where = f"{column} IN {{ids:Array(String)}} {which}"
        if rows := _count(client, table, where, chunk, person):
            client.command(
                f"ALTER TABLE {table} DELETE WHERE {where}",
                parameters={"ids": chunk, "tenant": person.tenant},
                settings={"mutations_sync": 2},
            )
            deleted += rows
    return deleted


def _chunks(ids: Sequence[str]) -> Iterator[list[str]]:
    each = iter(ids)
    while chunk := list(islice(each, _CHUNK)):
        yield chunk
