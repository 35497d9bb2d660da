"""Give a database with the views, and plant rows in the tables that they read."""

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from stepstream.config import Settings
from stepstream.jobs.clickhouse import connection
from stepstream.jobs.clickhouse.materialized_views import materialized_views
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.jobs.clickhouse.rollup_refresh import REFRESHED, statement

AT = datetime(2026, 11, 20, 10, 30, tzinfo=UTC)
RANGE = "since = '2026-11-20', until = '2026-11-21'"
TENANT = "default"
TABLES = (
    *("checkpoints", "component_hours", "feedback", "learner_update_lags", "learner_updates", "steps", "tool_hours"),
    *("dirty_hours", "first_token_hours", "task_hours", "trajectories", "trajectory_hours", "worker_status"),
    *("worker_hours", "cohort_times", "cohort_signals", "feedback_marks", "materialized_cohorts"),
    *(view.stored for view in materialized_views()),
)
FIVE_TASKS = [(8, 8), (8, 6), (8, 3), (8, 0), (5, 4)]
"""Attempts and successes of the tasks of shared/METRICS.md."""


@pytest.fixture(scope="module")
def view_settings(own_database: Callable[[str], Settings], request: pytest.FixtureRequest) -> Settings:
    return own_database(request.module.__name__.rpartition(".")[2])


@pytest.fixture(scope="module")
def _view_client(view_settings: Settings) -> Iterator[Client]:
    migrate(view_settings)
    with connection.connect(view_settings, database=view_settings.clickhouse.database) as client:
        # A refresh would replace planted rows by the facts.
        for name in (*REFRESHED, *(view.name for view in materialized_views())):
            client.command(f"DROP VIEW IF EXISTS {name}_refresh SYNC")
        yield client


@pytest.fixture
def view_client(_view_client: Client) -> Client:
    """A client of a database with empty tables and all views."""
    for table in TABLES:
        _view_client.command(f"TRUNCATE TABLE {table}")
    return _view_client


def plant(client: Client, table: str, rows: Iterable[dict[str, Any]]) -> None:
    """Insert rows of the given columns; the others have their defaults.

    Rollups that views of attempts and steps read follow, and feedback marks the cohorts of its trajectories.
    """
    for columns, group in groupby(rows, key=tuple):
        client.insert(table, [list(row.values()) for row in group], column_names=list(columns))
    if table == "trajectories":
        client.command(f"INSERT INTO task_hours {statement('task_hours', {})}")
    if table == "steps":
        client.command(f"INSERT INTO first_token_hours {statement('first_token_hours', {})}")
    if table == "feedback":
        client.command(f"INSERT INTO cohort_signals {statement('cohort_signals', {})}")


def attempt(name: str, success: bool | None, **fields: Any) -> dict[str, Any]:
    """Return an attempt of version 3 at a task, of no time, tokens or calls; `name` is `TASK/NUMBER`."""
    return {
        "tenant": TENANT,
        "trajectory_id": name,
        "revision": 1,
        "label_id": "00000000-0000-0000-0000-000000000001",
        "opened_at": AT,
        "started_at": AT,
        "ended_at": AT + timedelta(seconds=fields.pop("seconds", 0)),
        "agent": "a",
        "model": "m",
        "harness_version": "h",
        "split": "eval",
        "task_id": name.rpartition("/")[0],
        "version_min": 3,
        "version_max": 3,
        "end": "terminated",
        "success": success,
        **fields,
    }


def attempts(task: str, n: int, successes: int, **fields: Any) -> list[dict[str, Any]]:
    """Return `n` attempts at a task, of which the first `successes` succeed."""
    return [attempt(f"{task}/{index}", index < successes, **fields) for index in range(n)]


def five_tasks() -> list[dict[str, Any]]:
    """Return the attempts at `FIVE_TASKS`, `t0` to `t4`."""
    return [row for task, (n, c) in enumerate(FIVE_TASKS) for row in attempts(f"t{task}", n, c)]


def signal(
    trajectory: str, name: str, value: float | None = None, category: str = "", hours: float = 0
) -> dict[str, Any]:
    """Return feedback that comes `hours` after the attempt."""
    event = f"{trajectory}-{name}-{category}-{hours}"
    return {
        "tenant": TENANT,
        "trajectory_id": trajectory,
        "source_key": abs(hash(event)),
        "occurred_at": AT + timedelta(hours=hours),
        "event_id": event,
        "source_event_id": event,
        "name": name,
        "value": value,
        "category": category,
    }


def hour(**fields: Any) -> dict[str, Any]:
    """Return an hour's sums of version 3."""
    start = AT.replace(minute=0)
    who = {"tenant": TENANT, "model": "m", "harness_version": "h", "policy_version": 3, "split": "eval"}
    return {"hour": start, **who, "version": AT, **fields}


def read(client: Client, view: str, where: str = "1") -> list[dict[str, Any]]:
    """Return the rows of a view on the day of `AT`."""
    return list(client.query(f"SELECT * FROM {view}({RANGE}) WHERE {where}").named_results())


def read_one(client: Client, view: str, where: str = "1") -> dict[str, Any]:
    """Return the only row of a view."""
    (row,) = read(client, view, where)
    return row
