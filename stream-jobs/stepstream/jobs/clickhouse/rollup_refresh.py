"""Keep the rollups (`rollups/NAME.sql`) equal to the facts: recompute the hours whose facts changed.

Each statement selects absolute sums of every (hour, cohort) of the hours that are due (`rollups/due.sql`): marked in
`dirty_hours` after the rollup's newest version, or up to 60 s before it, since rows may become visible after their
mark. A cohort whose facts are gone gets zeros. A cohort with empty names records that the hour is done. At most 48
hours or 7 days are computed in one run, the newest first, so that charts stay current during a replay.

Hours whose facts a retention may have deleted are never due: the rollup keeps what it has of them. The days of
`trajectory_days` are due when one of their hours has been computed, those first that were computed longest ago
(`rollups/due_days.sql`).

A refreshable materialized view runs each statement every `clickhouse.refresh_s`, in a server and in the embedded store
alike. They run one after the other: together they would take both cores from a dashboard's query.

Readers of `task_hours`, `tool_hours` and `first_token_hours` choose the rows of each hour's newest version instead of
`FINAL`. So one refresh must write all rows of an hour, in one part (one thread inserts), and no other refresh may write
the same version: on a cluster, the microseconds of a version are the number of its replica.
"""

from collections.abc import Mapping
from importlib import resources
from string import Template

from clickhouse_connect.driver.client import Client

from stepstream.jobs.clickhouse.cluster import render
from stepstream.jobs.clickhouse.outcome import OUTCOME
from stepstream.jobs.clickhouse.views import views

ROLLUPS = (
    *("trajectory_hours", "trajectory_days", "step_hours", "first_token_hours", "tool_hours", "tool_days"),
    *("component_hours", "task_hours", "user_days"),
)
OF_STEPS = ("step_hours", "first_token_hours")
"""Rollups of `steps`; the others are of `trajectories`."""
OF_HOURS = ("trajectory_days",)
"""Rollups of another rollup, `trajectory_hours`, which no retention deletes."""
REFRESHED = (*ROLLUPS, "cohort_signals")
"""Rollups, and the table of the cohorts about which feedback came."""

_LAG = f"""
SELECT max(greatest(0, dateDiff('second', ifNull(last_success_time, now() - uptime()), now())))
FROM system.view_refreshes
WHERE database = currentDatabase() AND view IN ({", ".join(f"'{rollup}_refresh'" for rollup in REFRESHED)})
"""
_SETTINGS = "SETTINGS max_insert_threads = 1"
_NOW = "now64(6, 'UTC')"
_NOW_OF_REPLICA = (
    "toDateTime64(now64(3, 'UTC'), 6, 'UTC') + INTERVAL (SELECT max(replica_num) FROM system.clusters "
    "WHERE cluster = '{cluster}' AND is_local) MICROSECOND"
)


def statement(rollup: str, days: Mapping[str, int], cluster: str = "") -> str:
    """Return the SELECT whose rows are the newest versions of the hours that are due.

    Args:
        rollup: one of `REFRESHED`.
        days: days that each table of facts keeps its rows (`retention.days_of`); 0 or missing: for ever.
        cluster: name of the cluster whose replicas all refresh; empty: one server.
    """
    facts = "steps" if rollup in OF_STEPS else "trajectories"
    since = complete_since(facts, days)
    unit, marked, most = ("day", "toDate(hour)", 7) if rollup.endswith("_days") else ("hour", "hour", 48)
    due = template("due_days" if rollup in OF_HOURS else "due").substitute(
        rollup=rollup, facts=facts, unit=unit, marked=marked, most=most, complete_since=since
    )
    names = sorted({name for view in views().values() for name in view.signals})
    text = template(rollup).substitute(
        due=due.rstrip(), outcome=OUTCOME, now=now_of(cluster), signal_names=", ".join(f"'{name}'" for name in names)
    )
    return f"{text.rstrip()}\n{_SETTINGS}"


def complete_since(facts: str, days: Mapping[str, int]) -> str:
    """Return the expression of the time since which no retention has deleted facts of this table."""
    kept = days.get(facts, 0)
    # A day more than is deleted: a day of which a part is gone would be counted anew without it.
    return f"toStartOfDay(now('UTC')) - INTERVAL {kept - 1} DAY" if kept else "toDateTime(0, 'UTC')"


def now_of(cluster: str) -> str:
    """Return the expression of a version: on a cluster, no two replicas have the same."""
    if not cluster:
        return _NOW
    return _NOW_OF_REPLICA.format(cluster=cluster.replace("\\", "\\\\").replace("'", "\\'"))


def template(name: str) -> Template:
    """Return the text of `rollups/NAME.sql`."""
    return Template((resources.files("stepstream.jobs.clickhouse") / "rollups" / f"{name}.sql").read_text("utf-8"))


def create_refreshes(client: Client, days: Mapping[str, int], every_s: int, cluster: str = "") -> None:
    """Create the view that refreshes each of `REFRESHED`, or replace it by that of this release.

    `days` as in `statement`, `every_s`: seconds between two refreshes, `cluster` as in `cluster.render`.

    Raises:
        ClickHouseError: the store is unavailable, or lacks a table of the migrations.
    """
    for number, rollup in enumerate(REFRESHED):
        later = f" OFFSET {offset} SECOND" if (offset := number * every_s // len(REFRESHED)) else ""
        for text in (
            f"DROP VIEW IF EXISTS {rollup}_refresh SYNC",
            f"CREATE MATERIALIZED VIEW IF NOT EXISTS {rollup}_refresh REFRESH EVERY {every_s} SECOND{later} "
            f"APPEND TO {rollup} AS\n{statement(rollup, days, cluster)}",
        ):
            client.command(render(text, cluster))


def refresh_lag_s(client: Client) -> float:
    """Return the time since the last refresh of the rollup that was refreshed longest ago, in seconds; 0: no rollup.

    One that the server has not refreshed since its start counts from there.

    Raises:
        ClickHouseError: the store is unavailable.
    """
    (lag,) = client.query(_LAG).result_rows[0]
    return float(lag)


def refresh(client: Client) -> None:
    """Recompute the hours that are due now, once, of facts that are kept for ever.

    Raises:
        ClickHouseError: the store is unavailable, or lacks a table of the migrations.
    """
    for rollup in REFRESHED:
        client.command(f"INSERT INTO {rollup} {statement(rollup, {})}")
