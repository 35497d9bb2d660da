"""Find when persons have rows, and delete these times with the rows.

`trajectory_times` has the times of the rows of each user in each trajectory, under digests of both: every row of
`steps` and every label is within the times of its user. A query that looks for persons by name reads the rows of these
times alone, by the primary key, instead of the users of all rows. A row of somebody whose name has the same digest is
read in addition, and compared by name.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from clickhouse_connect.driver.client import Client

from stepstream.jobs.clickhouse.number_sets import number_sets
from stepstream.jobs.erasure.row_keys import Facts, tenant_condition
from stepstream.jobs.erasure.row_queries import ABOUT, PERSONS, Pair, Tables, hide, select

MOST_BUCKETS = 100_000
"""Ranges of the primary key that a query reads one by one; it reads all rows of the tenants instead of more."""
UserKey = tuple[str, int]
"""Tenant, and `sipHash64` of a user."""
_COLUMNS = "trajectory_key, tenant, user_key, toUnixTimestamp(min(first)), toUnixTimestamp(max(last))"
_PERSONS = """
user_key IN (SELECT sipHash64(name) FROM persons)
    AND (tenant, user_key) IN (SELECT tenant, sipHash64(name) FROM persons)
"""


@dataclass(frozen=True, slots=True)
class RowTimes:
    """Times of the rows of one user in one trajectory."""

    trajectory_key: int
    tenant: str
    user_key: int
    """0: the rows name nobody."""
    first_s: int
    """Unix time in seconds."""
    last_s: int


@dataclass(frozen=True, slots=True)
class TimesIndex:
    """Times of the rows of some persons, and of the others' rows in some trajectories."""

    persons: Sequence[RowTimes]
    others: Mapping[Pair, Sequence[RowTimes]]
    """By tenant and name of the trajectory: rows that name nobody, or somebody else."""
    user_keys: frozenset[UserKey]
    """Digests of the persons."""

    def nameless(self) -> dict[Pair, Sequence[RowTimes]]:
        """Return the times of the rows that name nobody."""
        found = {pair: [one for one in times if not one.user_key] for pair, times in self.others.items()}
        return {pair: times for pair, times in found.items() if times}


def times_of(client: Client, persons: Collection[Pair], trajectories: Collection[Pair] = ()) -> TimesIndex:
    """Return the times of the persons' rows, and of the rows of others in the trajectories.

    Raises:
        ClickHouseError: the store is unavailable.
    """
    query = f"SELECT {_COLUMNS} FROM trajectory_times WHERE {_PERSONS} GROUP BY trajectory_key, tenant, user_key"
    found = [RowTimes(*row) for row in select(client, query, persons=persons)]
    keys = select(client, "SELECT tenant, sipHash64(name) FROM persons", persons=persons)
    user_keys = frozenset((tenant, key) for tenant, key in keys)
    names = {
        (tenant, key): name
        for tenant, name, key in select(client, "SELECT tenant, name, sipHash64(name) FROM about", about=trajectories)
    }
    query = f"""
    SELECT {_COLUMNS} FROM trajectory_times
    WHERE trajectory_key IN (SELECT sipHash64(name) FROM about)
        AND (trajectory_key, tenant) IN (SELECT sipHash64(name), tenant FROM about)
    GROUP BY trajectory_key, tenant, user_key
    """
    others: dict[Pair, list[RowTimes]] = {}
    for times in (RowTimes(*row) for row in (select(client, query, about=trajectories) if names else [])):
        if (times.tenant, times.user_key) not in user_keys:
            others.setdefault((times.tenant, names[times.tenant, times.trajectory_key]), []).append(times)
    return TimesIndex(found, others, user_keys)


def within(facts: Facts, times: Iterable[RowTimes]) -> tuple[str, Tables]:
    """Return a condition that holds for each row of some times, with the temporary table that it reads. Pure.

    It selects what is read, and holds for some rows of other times too.
    """
    bounds: dict[str, list[tuple[int, int]]] = {}
    for one in times:
        bounds.setdefault(one.tenant, []).append((one.first_s // facts.bucket_s, one.last_s // facts.bucket_s))
    ranges = [(tenant, first, last) for tenant, of in bounds.items() for first, last in _united(of)]
    if any(first < 0 for _, first, _ in ranges) or sum(last - first + 1 for _, first, last in ranges) > MOST_BUCKETS:
        return tenant_condition(bounds), {}
    buckets = [(tenant, number * facts.bucket_s) for tenant, first, last in ranges for number in range(first, last + 1)]
    tenant, start, *_ = facts.key
    ranges_of = f"({tenant}, {start}) IN (SELECT tenant, toDateTime(start, 'UTC') FROM buckets)"
    return f"indexHint({ranges_of})", {"buckets": buckets}


def _united(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same numbers as disjoint ranges."""
    united: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if united and first <= united[-1][1] + 1:
            united[-1] = united[-1][0], max(last, united[-1][1])
        else:
            united.append((first, last))
    return united


def delete_times(client: Client, index: TimesIndex, own: Collection[Pair]) -> None:
    """Delete the times of the persons' rows, and of the nameless rows of the persons' own trajectories."""
    if index.persons:
        hide_users(client, "trajectory_times", index.user_keys)
    times = index.nameless()
    nameless = {(pair[0], one.trajectory_key) for pair in times.keys() & set(own) for one in times[pair]}
    _hide_keys(client, "trajectory_times", "trajectory_key", nameless, "user_key = 0 AND ")


def newest_parts(client: Client, timed: Iterable[Facts]) -> dict[tuple[str, str], int]:
    """Return the newest block of each partition of the tables: later rows have later blocks."""
    query = (
        "SELECT table, partition_id, max(max_block_number) FROM system.parts "
        "WHERE database = currentDatabase() AND active AND table IN {tables:Array(String)} GROUP BY ALL"
    )
    rows = client.query(query, {"tables": [facts.find_in for facts in timed]}).result_rows
    return {(table, partition): block for table, partition, block in rows}


def restore_times(
    client: Client,
    timed: Iterable[Facts],
    before: Mapping[tuple[str, str], int],
    persons: Collection[Pair],
    own: Collection[Pair],
) -> None:
    """Insert the times of the persons' rows, and of nameless rows in `own` trajectories, that came since `before`."""
    query = (
        "SELECT name, partition_id, max_block_number FROM system.parts "
        "WHERE database = currentDatabase() AND active AND table = {table:String}"
    )
    for facts in timed:
        parts = [
            name
            for name, partition, block in client.query(query, {"table": facts.find_in}).result_rows
            if block > before.get((facts.find_in, partition), -1)
        ]
        if not parts:
            continue
        times = f"""
        SELECT sipHash64(trajectory_id), tenant, if(user = '', 0, sipHash64(user)), min({facts.time}), max({facts.time})
        FROM {facts.find_in}
        WHERE _part IN ({", ".join(f"'{name}'" for name in parts)}) AND (({PERSONS}) OR (user = '' AND {ABOUT}))
        GROUP BY ALL
        """
        if rows := select(client, times, persons=persons, about=own):
            columns = ["trajectory_key", "tenant", "user_key", "first", "last"]
            client.insert("trajectory_times", rows, column_names=columns)


def hide_users(client: Client, table: str, user_keys: Collection[UserKey]) -> None:
    """Hide the rows of users by one number of each row; `tenant` and `user_key` are columns of the table."""
    _hide_keys(client, table, "user_key", user_keys)


def _hide_keys(client: Client, table: str, column: str, keys: Collection[tuple[str, int]], also: str = "") -> None:
    """Hide the rows with these tenants and values of a column; `also` precedes the condition.

    Two tenants may have the same value: a digest of the tenant tells them apart. It is another than that of the values,
    since a user may have the tenant's name: the two would be 0 for each such person.
    """
    if not keys:
        return
    query = "SELECT tenant, cityHash64(tenant) FROM tenants GROUP BY tenant"
    digests = select(client, query, tenants=[(tenant, "") for tenant, _ in keys])
    tenants = {str(tenant): int(digest) for tenant, digest in digests}
    with number_sets(client, sorted({key ^ tenants[tenant] for tenant, key in keys})) as sets:
        hide(client, table, [f"{also}bitXor({column}, cityHash64(tenant)) IN {numbers}" for numbers in sets])
