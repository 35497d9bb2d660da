"""Delete the rows of some persons from ClickHouse, in one pass over each table.

Statements that change a table select rows by keys and event ids, not by the persons' names: ClickHouse stores the text
of a mutation beside the data, and the names must not stay there. They take the keys from `erased_keys`, whose rows are
dropped as soon as the statements have ended. A lightweight `DELETE` hides the rows from every
query; `clickhouse/hidden_rows.py` rewrites the parts later, once for all erasures of a day. To hide a row by one column
of its identity takes a quarter of the time that the whole identity takes (docs/measured/store.md): the rest of the
identity is compared before, in a query. Deletions fire no materialized views: they mark the hours, so that their
rollups are computed again.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from clickhouse_connect.driver.client import Client

from stepstream.jobs.erasure.findings import Person
from stepstream.jobs.erasure.row_keys import FACTS, Facts, Key, columns, conditions, short_condition, short_keys
from stepstream.jobs.erasure.row_queries import Pair, chunks, hide, key_sources, select

# One column first: few rows pass it, and only these are compared in full.
_PERSONS = "user IN (SELECT name FROM persons) AND (tenant, user) IN (SELECT tenant, name FROM persons)"
_ABOUT = "trajectory_id IN (SELECT name FROM about) AND (tenant, trajectory_id) IN (SELECT tenant, name FROM about)"
_PERSONS_OR_NAMELESS = f"""
user IN (SELECT name FROM persons UNION ALL SELECT '') AND (({_PERSONS}) OR (user = '' AND {_ABOUT}))
"""


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
        for tenant, user, name in select(client, query, persons=_names(persons)):
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
    for facts in FACTS:
        deleted += _delete(client, facts, targets)
    _delete_times(client, targets)
    _delete_days(client, targets)
    _delete_examples(client, targets)
    return deleted


def count_rows(client: Client, targets: Sequence[Target]) -> int:
    """Return the number of rows that name one of the persons, or nobody in one of their own trajectories."""
    rows = 0
    persons, own = _names(target.person for target in targets), _pairs(targets, lambda target: target.trajectories.own)
    for table in ("trajectories", "consents"):
        [(named,)] = select(client, f"SELECT count() FROM {table} WHERE {_PERSONS}", persons=persons)
        rows += int(named)
    for facts in (facts for facts in FACTS if facts.nameless):
        query = f"SELECT count() FROM {facts.find_in} WHERE {_PERSONS_OR_NAMELESS}"
        [(found,)] = select(client, query, persons=persons, about=own)
        rows += int(found)
    return rows


def _names(persons: Iterable[Person]) -> list[Pair]:
    return [(person.tenant, person.user) for person in persons]


def _pairs(targets: Sequence[Target], ids_of: Callable[[Target], Iterable[str]]) -> dict[Pair, int]:
    """Return the first of the targets to which each (tenant, trajectory) belongs."""
    owners: dict[Pair, int] = {}
    for number, target in enumerate(targets):
        for name in ids_of(target):
            owners.setdefault((target.person.tenant, name), number)
    return owners


@dataclass(frozen=True, slots=True)
class _Found:
    """Rows of the persons in the table that is searched, by identity."""

    owners: dict[Key, int]
    """Index of the person."""
    rows: dict[Key, int]
    """Number of rows: a step that was governed again has several."""


def _search(client: Client, facts: Facts, targets: Sequence[Target]) -> _Found:
    named = {name: number for number, name in enumerate(_names(target.person for target in targets))}
    about = _pairs(targets, lambda t: t.trajectories.own if facts.nameless else t.trajectories.joined)
    where = _PERSONS_OR_NAMELESS if facts.nameless else f"({_PERSONS}) OR ({_ABOUT})"
    query = (
        f"SELECT user, {columns(facts)}, count() FROM {facts.find_in} WHERE {where} "
        f"GROUP BY user, {', '.join(facts.key)}"
    )
    found = _Found({}, {})
    for user, *values, rows in select(client, query, persons=named, about=about):
        key, owner = tuple(values), named.get((values[0], user))
        found.owners[key] = about[key[0], key[2]] if owner is None else owner
        found.rows[key] = found.rows.get(key, 0) + int(rows)
    return found


def _delete(client: Client, facts: Facts, targets: Sequence[Target]) -> int:
    found = _search(client, facts, targets)
    hours = sorted({key[1] // 3600 * 3600 for key in found.owners})
    _mark(client, facts, hours)
    deleted = 0
    with key_sources(client, short_keys(facts, found.owners)) as sources:
        wheres = [short_condition(facts, found.owners, source) for source in sources]
        for table in facts.delete_from:
            present, shared = (_searched if table == facts.find_in else _present)(client, table, facts, found, wheres)
            for number, target in enumerate(targets):
                target.counts.plan_rows(f"{table} by key", table, present[number])
            if present and shared:
                _hide_apart(client, table, facts, found.owners.keys() - shared, shared)
            elif present:
                hide(client, table, wheres)
            for target in targets:
                target.counts.rows_removed(f"{table} by key", table)
            deleted += present.total()
    _mark(client, facts, hours)  # again: a refresh may have run since
    return deleted


def _hide_apart(client: Client, table: str, facts: Facts, alone: Collection[Key], shared: Collection[Key]) -> None:
    """Hide rows; the `shared` identities have a short column that other rows have too."""
    with key_sources(client, short_keys(facts, alone)) as sources:
        hide(client, table, [short_condition(facts, alone, source) for source in sources])
    hide(client, table, conditions(facts, shared))


def _mark(client: Client, facts: Facts, hours: Sequence[int]) -> None:
    if facts.dirty and hours:
        now = datetime.now(UTC)
        marks = [(facts.dirty, datetime.fromtimestamp(hour, UTC), now) for hour in hours]
        client.insert("dirty_hours", marks, column_names=["of", "hour", "at"])


def _searched(
    client: Client, table: str, facts: Facts, found: _Found, wheres: Sequence[str]
) -> tuple[Counter[int], set[Key]]:
    """Return, of the table that was searched, the number of rows of each person, and the shared identities.

    `wheres` select rows by their short columns. Shared are the identities whose short column other rows have too: of
    others, or of a writer since.
    """
    rows: Counter[int] = Counter()
    by_short: Counter[Any] = Counter()
    for key, number in found.rows.items():
        rows[found.owners[key]] += number
        by_short[key[facts.short]] += number
    short = facts.key[facts.short]
    differing: set[Any] = set()
    for where in wheres:
        query = f"SELECT {short}, count() FROM {table} WHERE {where} GROUP BY {short}"
        differing.update(value for value, number in client.query(query).result_rows if number != by_short[value])
    return rows, _with_short(facts, found, differing)


def _present(
    client: Client, table: str, facts: Facts, found: _Found, wheres: Sequence[str]
) -> tuple[Counter[int], set[Key]]:
    """Return the same of a table that names nobody."""
    rows: Counter[int] = Counter()
    foreign: set[Any] = set()
    for where in wheres:
        query = f"SELECT {columns(facts)}, count() FROM {table} WHERE {where} GROUP BY {', '.join(facts.key)}"
        for *key, present in client.query(query).result_rows:
            if (owner := found.owners.get(tuple(key))) is None:
                foreign.add(key[facts.short])
            else:
                rows[owner] += int(present)
    return rows, _with_short(facts, found, foreign)


def _with_short(facts: Facts, found: _Found, values: Collection[Any]) -> set[Key]:
    return {key for key in found.owners if key[facts.short] in values} if values else set()


def _delete_times(client: Client, targets: Sequence[Target]) -> None:
    """Delete the times of the persons' own trajectories; those with steps of others get the times of these."""
    own = sorted(_pairs(targets, lambda target: target.trajectories.own))
    with key_sources(client, [(tenant, 0, name) for tenant, name in own]) as sources:
        for source in sources:
            keys = f"SELECT sipHash64(name), tenant FROM {source}"
            hide(client, "trajectory_times", [f"(trajectory_key, tenant) IN ({keys})"])
            client.command(
                "INSERT INTO trajectory_times SELECT sipHash64(trajectory_id) AS trajectory_key, tenant, "
                f"min(occurred_at), max(occurred_at) FROM steps WHERE trajectory_id IN (SELECT name FROM {source}) "
                f"AND (tenant, trajectory_id) IN (SELECT tenant, name FROM {source}) GROUP BY trajectory_key, tenant"
            )


def _delete_days(client: Client, targets: Sequence[Target]) -> None:
    """Delete the days on which the persons were active: their keys are digests of the names."""
    # ClickHouse keeps the statement, so it must not contain the names.
    persons = _names(target.person for target in targets)
    keys = list(select(client, "SELECT tenant, sipHash64(name) FROM persons", persons=persons))
    for chunk in chunks(keys):
        where = "(tenant, user_key) IN (SELECT arrayJoin(arrayZip({tenants:Array(String)}, {keys:Array(UInt64)})))"
        given = {"tenants": [tenant for tenant, _ in chunk], "keys": [key for _, key in chunk]}
        hide(client, "user_days", [where], parameters=given)


def _delete_examples(client: Client, targets: Sequence[Target]) -> None:
    """Delete the stored rows of `failure_clusters` of each cohort that name one of the trajectories.

    The view computes the rows of these cohorts until they are stored again.
    """
    about = _pairs(targets, lambda target: target.trajectories.joined)
    query = (
        "SELECT DISTINCT cohort_digest FROM failure_clusters_of_cohorts "
        "WHERE newest_trajectory_id IN (SELECT name FROM about) "
        "AND (tenant, newest_trajectory_id) IN (SELECT tenant, name FROM about)"
    )
    for chunk in chunks(sorted(digest for (digest,) in select(client, query, about=about))):
        digests = {"digests": chunk}
        where = "cohort_digest IN (SELECT arrayJoin({digests:Array(UInt128)}))"
        hide(client, "materialized_cohorts", [f"view = 'failure_clusters' AND {where}"], parameters=digests)
        hide(client, "failure_clusters_of_cohorts", [where], parameters=digests)


def _delete_consents(client: Client, targets: Sequence[Target]) -> int:
    owners = {name: number for number, name in enumerate(_names(target.person for target in targets))}
    events = select(client, f"SELECT event_id, tenant, user FROM consents WHERE {_PERSONS}", persons=owners)
    present = Counter(owners[tenant, user] for _, tenant, user in events)
    for number, target in enumerate(targets):
        target.counts.plan_rows("consents by event_id", "consents", present[number])
    for chunk in chunks([event_id for event_id, *_ in events]):
        client.command(
            "ALTER TABLE consents DELETE WHERE event_id IN {ids:Array(String)}",
            parameters={"ids": chunk},
            settings={"mutations_sync": 2},
        )
    for target in targets:
        target.counts.rows_removed("consents by event_id", "consents")
    return len(events)
