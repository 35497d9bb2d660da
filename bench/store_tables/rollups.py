"""Bring the rollups and stored rows to the facts, as the store does in time, and let its merges end."""

import time

from clickhouse_connect.driver.client import Client

from stepstream.jobs.clickhouse import materialized_views
from stepstream.jobs.clickhouse.rollup_refresh import refresh

FILLED = {
    *("steps", "trajectories", "trajectory_times", "trajectory_hours", "trajectory_days", "step_hours"),
    *("first_token_hours", "component_hours", "tool_hours", "tool_days", "task_hours", "user_days", "cohorts"),
    *("cohort_times", "feedback", "checkpoints", "learner_updates", "learner_update_lags", "worker_status"),
    "worker_hours",
}
"""Tables with rows; a view that reads others is not measured."""
_LONGEST_WAIT_S = 900
_IDLE_LOOKS = 5
"""Looks in turn, a second apart, that find no merge."""
_SETTLES_S = "SELECT dateDiff('second', now(), max(at)) + 62 FROM dirty_hours"
_RESTS_S = """
SELECT dateDiff('second', now(), greatest((SELECT max(changed) FROM cohort_times),
    (SELECT max(changed) FROM cohort_signals WHERE tenant != ''))) + 62
"""
_COUNTS_S = "SELECT dateDiff('second', now(), max(version)) + 302 FROM materialized_cohorts"
_DUE = """
SELECT countIf(marked > done - INTERVAL 60 SECOND)
FROM (SELECT of, hour, max(at) AS marked FROM dirty_hours GROUP BY of, hour) AS d
LEFT JOIN
(
    SELECT 'trajectories' AS of, hour, max(version) AS done FROM trajectory_hours GROUP BY hour
    UNION ALL
    SELECT 'steps' AS of, hour, max(version) AS done FROM step_hours GROUP BY hour
) AS r USING (of, hour)
"""


def compute_rollups(client: Client) -> tuple[int, float]:
    """Refresh until no hour is due; return the number of refreshes and their seconds.

    Hours are due again for a minute after their facts came: the refreshes begin after it.
    """
    [(wait_s,)] = client.query(_SETTLES_S).result_rows
    time.sleep(max(0, wait_s))
    began, refreshes = time.perf_counter(), 0
    while client.query(_DUE).result_rows != [(0,)]:
        refresh(client)
        refreshes += 1
    return refreshes, time.perf_counter() - began


def store_cohorts(client: Client) -> tuple[int, float]:
    """Store the rows of views by cohort, until no cohort is due; return the cohorts of all views and the seconds.

    The store does so five minutes after the attempts changed last, or later (`materialized_views.REST_S`). Rows that
    are stored within a minute of it do not count, and their cohorts stay due: this begins after it.
    """
    [(wait_s,)] = client.query(_RESTS_S).result_rows
    time.sleep(max(0, wait_s))
    began, cohorts = time.perf_counter(), -1
    while (found := client.query("SELECT count() FROM materialized_cohorts FINAL").result_rows[0][0]) != cohorts:
        cohorts = found
        materialized_views.refresh(client, rest_s=0)
    return cohorts, time.perf_counter() - began


def wait_until_stored_rows_count(client: Client) -> None:
    """Wait five minutes from the newest of the stored rows."""
    [(wait_s,)] = client.query(_COUNTS_S).result_rows
    time.sleep(max(0, wait_s))


def wait_for_merges(client: Client) -> float:
    """Wait until the engine merges nothing, at most `_LONGEST_WAIT_S`; return the seconds.

    Merges of the rows that were loaded take time of the processor from every query, of any design.
    """
    began, idle = time.perf_counter(), 0
    while idle < _IDLE_LOOKS and time.perf_counter() - began < _LONGEST_WAIT_S:
        [(merges,)] = client.query("SELECT count() FROM system.merges").result_rows
        idle = 0 if merges else idle + 1
        time.sleep(1)
    return time.perf_counter() - began
