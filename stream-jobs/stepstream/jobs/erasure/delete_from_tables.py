"""Delete the rows of some persons from ClickHouse, in one pass over each table.

Statements that change a table select rows by keys and event ids, not by the persons' names: ClickHouse stores the text
of a mutation beside the data, and the names must not stay there. They look numbers up in a table that is dropped as
soon as they have ended (`clickhouse/number_sets.py`). A lightweight `DELETE` hides the rows from every
query; `clickhouse/hidden_rows.py` rewrites the parts later, once for all erasures of a day. To hide a row by one number
takes a quarter of the time that the whole identity takes (docs/measured/store-erasure.md): the identity is compared
before, in a query. Deletions fire no materialized views: they mark the hours, so that their rollups are computed again.

Steps and labels are read at the times of the persons' rows only (`row_times.py`). These times are deleted last. Rows
that a writer inserted meanwhile are looked for after that, and get their times again: the next pass deletes them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from clickhouse_connect.driver.client import Client

from stepstream.jobs.clickhouse.number_sets import drop_left_sets, number_sets
from stepstream.jobs.erasure.findings import Person
from stepstream.jobs.erasure.row_keys import (
    FACTS,
    Facts,
    Key,
    columns,
    conditions,
    short_condition,
)
from stepstream.jobs.erasure.row_queries import ABOUT, PERSONS, Pair, Tables, chunks, hide, select
from stepstream.jobs.erasure.row_times import (
    RowTimes,
    TimesIndex,
    delete_times,
    hide_users,
    newest_parts,
    restore_times,
    times_of,
    within,
)

_STEPS, _LABELS = (next(facts for facts in FACTS if facts.find_in == table) for table in ("steps", "trajectories"))
_TIMED = (_STEPS, _LABELS)
"""Those whose times are in `trajectory_times`."""


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
    names = _names(persons)
    found = {person: PersonTrajectories() for person in persons}
    query = f"SELECT DISTINCT tenant, user, trajectory_id FROM feedback WHERE {PERSONS}"
    for tenant, user, name in select(client, query, persons=names):
        found[Person(tenant, user)].joined.add(name)
    # The labels first: they are fewer. Steps tell the trajectories whose labels name somebody else, or that have none.
    unread: Sequence[RowTimes] = times_of(client, names).persons
    for facts in (_LABELS, _STEPS):
        if not unread:
            break
        where, tables = within(facts, unread)
        query = (
            f"SELECT tenant, user, trajectory_id, sipHash64(trajectory_id), sipHash64(user) FROM {facts.find_in} "
            f"PREWHERE user IN (SELECT name FROM persons) WHERE {where} AND ({PERSONS}) GROUP BY ALL"
        )
        read = set()
        for tenant, user, name, *keys in select(client, query, persons=names, **tables):
            of = found[Person(tenant, user)]
            of.joined.add(name)
            of.own.add(name)
            read.add((tenant, *keys))
        unread = [one for one in unread if (one.tenant, one.trajectory_key, one.user_key) not in read]
    return found


def delete_rows(client: Client, targets: Sequence[Target]) -> int:
    """Delete every row of the persons and return their number. On return, no query finds the rows.

    The rows' bytes stay in their parts until these are rewritten (`clickhouse/hidden_rows.py`).

    Raises:
        ClickHouseError: the store is unavailable or rejects a query; run it again.
    """
    drop_left_sets(client)
    parts = newest_parts(client, _TIMED)
    index = _times_of(client, targets)
    deleted = _delete_consents(client, targets)
    for facts in FACTS:
        deleted += _delete(client, facts, targets, index)
    own = _pairs(targets, lambda target: target.trajectories.own)
    delete_times(client, index, own)
    restore_times(client, _TIMED, parts, _names(target.person for target in targets), own)
    _delete_days(client, index)
    _delete_examples(client, targets)
    return deleted


def count_rows(client: Client, targets: Sequence[Target]) -> int:
    """Return the number of rows that name one of the persons, or nobody in one of their own trajectories."""
    persons = _names(target.person for target in targets)
    [(rows,)] = select(client, f"SELECT count() FROM consents WHERE {PERSONS}", persons=persons)
    index = _times_of(client, targets)
    for facts in FACTS:
        rows += sum(
            row[-1] for row in _select_rows(client, facts, targets, index, "tenant, user, count()", "tenant, user")
        )
    return int(rows)


def _names(persons: Iterable[Person]) -> list[Pair]:
    return [(person.tenant, person.user) for person in persons]


def _pairs(targets: Sequence[Target], ids_of: Callable[[Target], Iterable[str]]) -> dict[Pair, int]:
    """Return the first of the targets to which each (tenant, trajectory) belongs."""
    owners: dict[Pair, int] = {}
    for number, target in enumerate(targets):
        for name in ids_of(target):
            owners.setdefault((target.person.tenant, name), number)
    return owners


def _times_of(client: Client, targets: Sequence[Target]) -> TimesIndex:
    joined = _pairs(targets, lambda target: target.trajectories.joined | target.trajectories.own)
    return times_of(client, _names(target.person for target in targets), joined)


def _select_rows(
    client: Client, facts: Facts, targets: Sequence[Target], index: TimesIndex, values: str, group_by: str
) -> Sequence[Sequence[Any]]:
    """Return expressions of the rows that are deleted: of the persons, and about trajectories as `nameless` says."""
    names = _names(target.person for target in targets)
    about: Collection[Pair] = _pairs(targets, lambda t: t.trajectories.own if facts.nameless else t.trajectories.joined)
    tables: Tables = {}
    where, prewhere = "true", "PREWHERE user IN (SELECT name FROM names)"
    if facts.bucket_s:
        others = index.nameless() if facts.nameless else index.others
        about = [pair for pair in about if pair in others]
        times = [*index.persons, *(one for pair in about for one in others[pair])]
        if not times:
            return []
        where, tables = within(facts, times)
    of_persons = PERSONS
    if about and facts.nameless:
        of_persons = f"({PERSONS}) OR (user = '' AND {ABOUT})"
        if not facts.bucket_s:  # feedback, which has a hash of its trajectory: most of it names nobody
            prewhere = (
                "PREWHERE user IN (SELECT name FROM persons) OR trajectory_key IN (SELECT sipHash64(name) FROM about)"
            )
    elif about:
        of_persons, prewhere = f"({PERSONS}) OR ({ABOUT})", ""
    query = f"SELECT {values} FROM {facts.find_in} {prewhere} WHERE {where} AND ({of_persons}) GROUP BY {group_by}"
    nobody = [("", "")] if about else []
    return select(client, query, persons=names, names=names + nobody, about=about, **tables)


@dataclass(frozen=True, slots=True)
class _Found:
    """Rows of the persons in the table that is searched."""

    owners: dict[Key, int]
    """Index of the person, by identity."""
    rows: Counter[Key]
    """Number of rows: a step that was governed again has several."""
    shorts: dict[Key, set[int]]
    """Short numbers of the rows."""
    by_short: Counter[int]
    """Number of rows."""

    def numbers_of(self, keys: Collection[Key]) -> list[int]:
        """Return the short numbers of some identities, each once, by their times."""
        ordered = sorted(keys, key=lambda key: (key[1], key))
        return list(dict.fromkeys(short for key in ordered for short in self.shorts[key]))


def _search(client: Client, facts: Facts, targets: Sequence[Target], index: TimesIndex) -> _Found:
    named = {name: number for number, name in enumerate(_names(target.person for target in targets))}
    about = _pairs(targets, lambda t: t.trajectories.own if facts.nameless else t.trajectories.joined)
    identity = f"user, {columns(facts)}, {facts.short}"
    found = _Found({}, Counter(), {}, Counter())
    for user, *values, short, rows in _select_rows(client, facts, targets, index, f"{identity}, count()", identity):
        key = tuple(values)
        owner = named.get((key[0], user))
        found.owners[key] = about[key[0], key[2]] if owner is None else owner
        found.rows[key] += rows
        found.shorts.setdefault(key, set()).add(short)
        found.by_short[short] += rows
    return found


def _delete(client: Client, facts: Facts, targets: Sequence[Target], index: TimesIndex) -> int:
    found = _search(client, facts, targets, index)
    hours = sorted({key[1] // 3600 * 3600 for key in found.owners})
    _mark(client, facts, hours)
    deleted = 0
    tenants = _tenants(client, found)
    with number_sets(client, found.numbers_of(found.owners)) as sets:
        wheres = [short_condition(facts, tenants, numbers) for numbers in sets]
        for table in facts.delete_from:
            present, shared = (_searched if table == facts.find_in else _present)(client, table, facts, found, wheres)
            for number, target in enumerate(targets):
                target.counts.plan_rows(f"{table} by key", table, present[number])
            if present and shared:
                _hide_apart(client, table, facts, found, shared, tenants)
            elif present:
                hide(client, table, wheres)
            for target in targets:
                target.counts.rows_removed(f"{table} by key", table)
            deleted += present.total()
    _mark(client, facts, hours)  # again: a refresh may have run since
    return deleted


def _tenants(client: Client, found: _Found) -> set[str] | None:
    """Return the tenants to which a statement is restricted; None if no other tenant has steps."""
    tenants = {key[0] for key in found.owners}
    # An hour without steps has a row without a tenant.
    query = "SELECT count() FROM step_hours WHERE tenant NOT IN {tenants:Array(String)} AND tenant != ''"
    [(others,)] = client.query(query, {"tenants": sorted(tenants)}).result_rows
    return tenants if others else None


def _hide_apart(
    client: Client,
    table: str,
    facts: Facts,
    found: _Found,
    shared: Collection[Key],
    tenants: set[str] | None,
) -> None:
    """Hide rows; the `shared` identities have a short number that other rows have too."""
    alone = found.owners.keys() - shared
    with number_sets(client, found.numbers_of(alone)) as sets:
        hide(client, table, [short_condition(facts, tenants, numbers) for numbers in sets])
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

    `wheres` select rows by their short numbers. Shared are the identities whose number other rows have too: of others,
    or of a writer since.
    """
    rows: Counter[int] = Counter()
    for key, number in found.rows.items():
        rows[found.owners[key]] += number
    differing = set()
    for where in wheres:
        query = f"SELECT {facts.short} AS short, count() FROM {table} WHERE {where} GROUP BY short"
        for short, number in client.query(query).result_rows:
            if number != found.by_short[short]:
                differing.add(short)
    return rows, _with_short(found, differing)


def _present(
    client: Client, table: str, facts: Facts, found: _Found, wheres: Sequence[str]
) -> tuple[Counter[int], set[Key]]:
    """Return the same of a table that names nobody."""
    rows: Counter[int] = Counter()
    foreign: set[int] = set()
    for where in wheres:
        query = f"SELECT {columns(facts)}, {facts.short}, count() FROM {table} WHERE {where} GROUP BY ALL"
        for *key, short, present in client.query(query).result_rows:
            if (owner := found.owners.get(tuple(key))) is None:
                foreign.add(short)
            else:
                rows[owner] += int(present)
    return rows, _with_short(found, foreign)


def _with_short(found: _Found, shorts: Collection[int]) -> set[Key]:
    """Return the identities of which a row has one of these short numbers."""
    if not shorts:
        return set()
    return {key for key, of in found.shorts.items() if not of.isdisjoint(shorts)}


def _delete_days(client: Client, index: TimesIndex) -> None:
    """Delete the days on which the persons were active."""
    query = "SELECT count() FROM user_days WHERE user_key IN {keys:Array(UInt64)}"
    for chunk in chunks(sorted(index.user_keys)):
        if client.query(query, {"keys": [key for _, key in chunk]}).result_rows != [(0,)]:
            hide_users(client, "user_days", chunk)


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
    events = select(client, f"SELECT event_id, tenant, user FROM consents WHERE {PERSONS}", persons=owners)
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
