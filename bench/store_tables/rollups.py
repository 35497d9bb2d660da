"""Bring the rollups to the facts, as the store does every ten seconds."""

from clickhouse_connect.driver.client import Client

from stepstream.jobs.clickhouse.rollup_refresh import refresh

FILLED = {
    *("steps", "trajectories", "trajectory_times", "trajectory_hours", "step_hours", "component_hours"),
    *("tool_hours", "tool_days", "user_days"),
}
"""Tables with rows; a view that reads others is not measured."""
_MISSING = """
SELECT
    (SELECT uniqExact(toStartOfHour(opened_at)) FROM trajectories) - (SELECT uniqExact(hour) FROM trajectory_hours),
    (SELECT uniqExact(toStartOfHour(opened_at)) FROM trajectories) - (SELECT uniqExact(hour) FROM component_hours),
    (SELECT uniqExact(toStartOfHour(occurred_at)) FROM steps) - (SELECT uniqExact(hour) FROM step_hours),
    (SELECT uniqExact(toDate(opened_at)) FROM trajectories) - (SELECT uniqExact(day) FROM user_days)
"""


def compute_rollups(client: Client) -> int:
    """Refresh until every hour of the facts is in the rollups; return the number of refreshes."""
    refreshes = 0
    while any(missing > 0 for missing in client.query(_MISSING).result_rows[0]):
        refresh(client)
        refreshes += 1
    return refreshes
