"""Bring the rollups to the facts, as the store does every ten seconds, and let its merges end."""

import time

from clickhouse_connect.driver.client import Client

from stepstream.jobs.clickhouse.rollup_refresh import refresh

FILLED = {
    *("steps", "trajectories", "trajectory_times", "trajectory_hours", "step_hours", "component_hours"),
    *("tool_hours", "tool_days", "task_hours", "user_days", "cohorts"),
}
"""Tables with rows; a view that reads others is not measured."""
_LONGEST_WAIT_S = 900
_IDLE_LOOKS = 5
"""Looks in turn, a second apart, that find no merge."""
_SETTLES_S = "SELECT dateDiff('second', now(), max(at)) + 62 FROM dirty_hours"
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
