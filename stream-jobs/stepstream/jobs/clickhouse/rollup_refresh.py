"""Keep the rollups (`rollups/NAME.sql`) equal to the facts: recompute the hours whose facts changed.

Each statement selects absolute sums of every (hour, cohort) of the hours that are due: marked in `dirty_hours` after
the rollup's newest version, or up to 60 s before it, since rows may become visible after their mark. A cohort whose
facts are gone gets zeros. A cohort with empty names records that the hour is done. At most 48 hours or 7 days are
computed in one run, the newest first, so that charts stay current during a replay.

A refreshable materialized view runs each statement every 10 s, in a server and in the embedded store alike.
"""

from importlib import resources

from clickhouse_connect.driver.client import Client

EVERY_S = 10
"""Seconds between two refreshes of a rollup."""
ROLLUPS = ("trajectory_hours", "step_hours", "tool_hours", "tool_days", "component_hours", "user_days")


_LAG = f"""
SELECT max(greatest(0, dateDiff('second', ifNull(last_success_time, now() - uptime()), now())))
FROM system.view_refreshes
WHERE database = currentDatabase() AND view IN ({", ".join(f"'{rollup}_refresh'" for rollup in ROLLUPS)})
"""


def statement(rollup: str) -> str:
    """Return the SELECT whose rows are the newest versions of the hours that are due."""
    file = resources.files("stepstream.jobs.clickhouse") / "rollups" / f"{rollup}.sql"
    return file.read_text("utf-8")


def create_refreshes(client: Client) -> None:
    """Create the view that refreshes each rollup, or replace it by that of this release.

    Raises:
        ClickHouseError: the store is unavailable, or lacks a table of the migrations.
    """
    for rollup in ROLLUPS:
        client.command(f"DROP VIEW IF EXISTS {rollup}_refresh SYNC")
        client.command(
            f"CREATE MATERIALIZED VIEW IF NOT EXISTS {rollup}_refresh REFRESH EVERY {EVERY_S} SECOND "
            f"APPEND TO {rollup} AS\n{statement(rollup)}"
        )


def refresh_lag_s(client: Client) -> float:
    """Return the time since the last refresh of the rollup that was refreshed longest ago, in seconds; 0: no rollup.

    One that the server has not refreshed since its start counts from there.

    Raises:
        ClickHouseError: the store is unavailable.
    """
    (lag,) = client.query(_LAG).result_rows[0]
    return float(lag)


def refresh(client: Client) -> None:
    """Recompute the hours that are due now, once.

    Raises:
        ClickHouseError: the store is unavailable, or lacks a table of the migrations.
    """
    for rollup in ROLLUPS:
        client.command(f"INSERT INTO {rollup} {statement(rollup)}")
