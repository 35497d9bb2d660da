"""Keep the rows of facts for the days of the settings `store.…_days`: TTLs by the time of the partition.

ClickHouse drops a partition once all of its rows are older; from one of a week, merges delete older rows before. A row
that is older when it is inserted would vanish silently, so the sink makes its record a dead letter (`expired_tables`).
"""

import re
from collections.abc import Iterable, Mapping

from clickhouse_connect.driver.client import Client

from stepstream.config import StoreSettings
from stepstream.jobs.clickhouse.cluster import render
from stepstream.jobs.clickhouse.columns import Record
from stepstream.jobs.clickhouse.fact_rows import partition_time_us
from stepstream.jobs.clickhouse.rows import TABLES

_DAY_US = 86_400 * 1_000_000
_ENGINES = """
SELECT name, engine_full FROM system.tables WHERE database = currentDatabase() AND name IN {names:Array(String)}
"""
_TTL = re.compile(r" TTL (.+?) SETTINGS ")
_TIMES = {"trajectories": "opened_at", "trajectory_times": "last"}
"""Columns of tables whose time is not `occurred_at`."""
_TIMES_LONGER = 7
"""Days that times outlast steps and labels, which an erasure finds by them: a row goes with its week at the latest."""


def days_of(store: StoreSettings) -> dict[str, int]:
    """Return the days that each table of facts keeps its rows; 0: for ever."""
    timed = (store.steps_days, store.trajectories_days)
    return {
        "steps": store.steps_days,
        "trajectory_times": max(timed) + _TIMES_LONGER if all(timed) else 0,
        "step_contents": store.contents_days,
        "trajectories": store.trajectories_days,
        "feedback": store.feedback_days,
        **dict.fromkeys(("closures", "curation", "governance_audit"), store.audit_days),
        "worker_status": store.worker_status_days,
    }


def apply_retention(client: Client, days: Mapping[str, int], cluster: str = "") -> None:
    """Set or remove the TTL of each table where it differs. Blocks until existing parts have it.

    `cluster` as in `cluster.render`.

    Raises:
        ClickHouseError: the store is unavailable, or lacks a table of the migrations.
    """
    for table, engine in client.query(_ENGINES, {"names": list(days)}).result_rows:
        found = _TTL.search(str(engine))
        wanted = f"toDateTime({_TIMES.get(table, 'occurred_at')}) + toIntervalDay({days[table]})"
        if days[table] and (found is None or found[1] != wanted):
            client.command(render(f"ALTER TABLE {table} MODIFY TTL {wanted}", cluster))
        elif found is not None and not days[table]:
            client.command(render(f"ALTER TABLE {table} REMOVE TTL", cluster))


def expired_tables(days: Mapping[str, int], tables: Iterable[str], record: Record, now_us: int) -> list[str]:
    """Return those of the tables in which the record's row would be older than the table keeps rows. Pure."""
    expired = []
    for table in tables:
        kept_us = days.get(table, 0) * _DAY_US
        time_us = partition_time_us(TABLES[table], record) if kept_us else None
        if time_us is not None and time_us + kept_us <= now_us:
            expired.append(table)
    return expired
