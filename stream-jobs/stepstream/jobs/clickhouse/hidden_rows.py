"""Rewrite the parts of tables that hold hidden rows: until then, the rows' bytes are on disk.

A lightweight `DELETE` hides rows by a mask beside the part's columns. No query returns them, and merges leave them out.
`APPLY DELETED MASK` writes each part with such rows again, without them; the others are linked. A rewriting of all
tables is due at each multiple of `store.rewrite_hours` since 1970 (UTC), so at midnight by default. The process that
begins it keeps no state: ClickHouse keeps the mutation, and goes on with it after a restart. Two that begin at once
cost no more than one, since ClickHouse applies both mutations to a part together.
"""

from collections.abc import Callable

from clickhouse_connect.driver.client import Client

TABLES = (
    *("steps", "step_contents", "feedback", "trajectories", "trajectory_times", "user_days"),
    *("failure_clusters_of_cohorts", "materialized_cohorts"),
)
"""Tables of which an erasure hides rows."""
OLD_PARTS_S = 480
"""Longest `old_parts_lifetime` of these tables; those of facts have 60. Replaced parts are then gone."""
_HIDDEN = """
SELECT table, count() AS parts FROM system.parts
WHERE database = currentDatabase() AND active AND has_lightweight_delete AND table IN {tables:Array(String)}
GROUP BY table ORDER BY table
"""
_BEGUN = """
SELECT DISTINCT table FROM system.mutations
WHERE database = currentDatabase() AND command LIKE '%APPLY DELETED MASK%'
    AND (NOT is_done OR create_time >= toDateTime({since:UInt32}))
"""
_AGE = """
SELECT max(greatest(0, dateDiff('second', create_time, now()))) FROM system.mutations
WHERE database = currentDatabase() AND command LIKE '%APPLY DELETED MASK%' AND NOT is_done
"""


def hidden_parts(client: Client) -> dict[str, int]:
    """Return the number of parts with hidden rows of each table that has any.

    Raises:
        ClickHouseError: the store is unavailable.
    """
    return {str(table): int(parts) for table, parts in client.query(_HIDDEN, {"tables": list(TABLES)}).result_rows}


def rewrite(client: Client, say: Callable[[str], None]) -> dict[str, int]:
    """Rewrite all parts with hidden rows; return their number by table. Blocks until they are rewritten.

    The replaced parts are gone from the disk after `OLD_PARTS_S` seconds.

    Raises:
        ClickHouseError: the store is unavailable; run it again.
    """
    found = hidden_parts(client)
    for table, parts in found.items():
        say(f"rewriting {parts} parts of {table}")
        _apply_masks(client, table, wait=True)
    return found


def begin_rewriting(client: Client, since_s: int) -> dict[str, int]:
    """Begin to rewrite all parts with hidden rows, unless that has begun since `since_s`, a Unix time.

    Returns:
        The number of parts that are rewritten, by table.

    Raises:
        ClickHouseError: the store is unavailable; call it again.
    """
    if not (found := hidden_parts(client)):
        return {}
    begun = {table for (table,) in client.query(_BEGUN, {"since": since_s}).result_rows}
    due = {table: parts for table, parts in found.items() if table not in begun}
    for table in due:
        _apply_masks(client, table, wait=False)
    return due


def rewriting_age_s(client: Client) -> float:
    """Return the time since the oldest rewriting that has not ended began, in seconds; 0: none is in progress.

    Raises:
        ClickHouseError: the store is unavailable.
    """
    (age,) = client.query(_AGE).result_rows[0]
    return float(age)


def _apply_masks(client: Client, table: str, *, wait: bool) -> None:
    # One statement a table: each rewrites its parts once and links the others. One a partition would link every part of
    # the table again for each day.
    client.command(f"ALTER TABLE {table} APPLY DELETED MASK", settings={"mutations_sync": 2 if wait else 0})


def last_due_s(now_s: float, hours: int) -> int | None:
    """Return the time (Unix, seconds) at which a rewriting was due last; None: none ever is, for 0 hours."""
    return int(now_s // (hours * 3600)) * hours * 3600 if hours else None


def next_due_s(now_s: float, hours: int) -> int | None:
    """Return the time (Unix, seconds) after `now_s` at which a rewriting is due; None: none ever is, for 0 hours."""
    last = last_due_s(now_s, hours)
    return None if last is None else last + hours * 3600
