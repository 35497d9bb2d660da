"""Test the views on the embedded store: their figures on planted rows, their pages' examples, `stepstream query`."""

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from analytics_tables import TABLES, create_tables, plant
from clickhouse_connect.driver.client import Client
from command_line import CommandResult, stepstream

from stepstream.config import Settings
from stepstream.jobs.clickhouse import connection
from stepstream.jobs.clickhouse.create_views import create_views
from stepstream.jobs.clickhouse.views import View, views

AT = datetime(2026, 11, 20, 10, 30, tzinfo=UTC)
RANGE = "since = '2026-11-20', until = '2026-11-21'"
VERSION = {"tenant": "default", "model": "m", "harness_version": "h", "policy_version": 3}


@pytest.fixture(scope="module")
def settings(store_settings: Settings) -> Settings:
    own = store_settings.clickhouse.model_copy(update={"database": "views"})
    return store_settings.model_copy(update={"clickhouse": own})


@pytest.fixture(scope="module")
def database(settings: Settings) -> Iterator[Client]:
    with connection.connect(settings) as client:
        client.command("CREATE DATABASE views")
    with connection.connect(settings, database="views") as client:
        create_tables(client)
        assert create_views(client) == list(views())
        yield client


@pytest.fixture
def client(database: Client) -> Client:
    for table in TABLES:
        database.command(f"TRUNCATE TABLE {table}")
    return database


def trajectories(tasks: dict[str, list[bool | None]], **fields: Any) -> list[dict[str, Any]]:
    """Return an attempt of version 3 for each outcome of each task."""
    who = {"tenant": "default", "agent": "a", "model": "m", "harness_version": "h", "version_min": 3, "version_max": 3}
    return [
        {
            "trajectory_id": f"{task}/{index}",
            "task_id": task,
            "revision": 1,
            "opened_at": AT,
            "ended_at": AT,
            "end": "terminated",
            "success": outcome,
            **who,
            **fields,
        }
        for task, outcomes in tasks.items()
        for index, outcome in enumerate(outcomes)
    ]


def outcomes(n: int, successes: int) -> list[bool | None]:
    return [index < successes for index in range(n)]


def read(client: Client, view: str, where: str = "1") -> list[dict[str, Any]]:
    return list(client.query(f"SELECT * FROM {view}({RANGE}) WHERE {where}").named_results())


FIVE_TASKS = {f"t{i}": outcomes(n, c) for i, (n, c) in enumerate([(8, 8), (8, 6), (8, 3), (8, 0), (5, 4)])}


@pytest.mark.parametrize("each", views().values(), ids=list(views()))
def test_columns_and_example_agree_with_the_catalogue(client: Client, each: View) -> None:
    found = client.query(f"SELECT * FROM {each.name}({RANGE}) LIMIT 0")
    columns = [(name, type_.name) for name, type_ in zip(found.column_names, found.column_types, strict=True)]
    assert [name for name, _ in columns[: len(each.grain)]] == list(each.grain)
    assert columns[len(each.grain) :] == [(column.name, column.type) for column in each.columns]
    client.query(each.example)
    for choice in each.choices:
        parameters = {"since": "2026-11-20", "until": "2026-11-21"}
        client.query(each.sql([*each.by, choice]), parameters=parameters)


def test_views_are_replaced_only_where_they_differ(client: Client) -> None:
    assert create_views(client) == []
    client.command("CREATE OR REPLACE VIEW task_outcomes AS SELECT 1 AS one")
    assert create_views(client) == ["task_outcomes"]


def test_pass_rates_of_five_tasks(client: Client) -> None:
    plant(client, "trajectories", trajectories(FIVE_TASKS))
    rows = {row["k"]: row for row in read(client, "pass_rates")}
    assert rows[1]["pass_at_k"] == pytest.approx(0.585)
    assert (rows[3]["pass_at_k"], rows[3]["pass_hat_k"]) == pytest.approx((0.764286, 0.355), abs=1e-6)
    assert (rows[8]["pass_at_k"], rows[8]["pass_hat_k"]) == (0.75, 0.25)
    assert (rows[8]["tasks"], rows[8]["tasks_left_out"], rows[8]["attempts"]) == (4, 1, 32)


def test_pass_rates_without_enough_attempts_are_null_with_a_reason(client: Client) -> None:
    plant(client, "trajectories", trajectories({"t": [True, None]}))
    row = read(client, "pass_rates", "k = 2")[0]
    assert (row["pass_at_k"], row["tasks"], row["without_outcome"]) == (None, 0, 1)
    assert row["reason"] == "no task has k attempts with an outcome"


def test_a_revision_and_a_redelivery_count_once(client: Client) -> None:
    first = trajectories({"t": [False]})
    for rows in (first, trajectories({"t": [True]}, revision=2), first):
        plant(client, "trajectories", rows)
    assert [(row["attempts"], row["successes"]) for row in read(client, "task_outcomes")] == [(1, 1)]


def test_a_time_out_is_a_failure(client: Client) -> None:
    plant(client, "trajectories", trajectories({"t": [None]}, end="truncated"))
    assert [(row["attempts"], row["successes"]) for row in read(client, "task_outcomes")] == [(1, 0)]


def hour(**fields: Any) -> dict[str, Any]:
    return {"hour": datetime(2026, 11, 20, 10, tzinfo=UTC), **VERSION, "version": AT, **fields}


def test_success_has_wilsons_interval(client: Client) -> None:
    plant(client, "trajectory_hours", [hour(trajectories=12, outcomes=10, successes=7)])
    plant(client, "trajectory_hours", [hour(policy_version=4, trajectories=20, outcomes=20)])
    plant(client, "trajectory_hours", [hour(policy_version=5, trajectories=1)])
    rows = {row["policy_version"]: row for row in read(client, "success_by_version")}
    assert (rows[3]["attempts"], rows[3]["success_rate"]) == (12, 0.7)
    assert (rows[3]["wilson_low"], rows[3]["wilson_high"]) == pytest.approx((0.396778, 0.892209), abs=1e-6)
    assert (rows[4]["wilson_low"], rows[4]["wilson_high"]) == pytest.approx((0, 0.161125), abs=1e-6)
    assert (rows[5]["success_rate"], rows[5]["wilson_low"]) == (None, None)
    assert rows[5]["reason"] == "no attempt has an outcome"


# --- stepstream query


@pytest.fixture
def planted(client: Client, settings: Settings) -> Settings:
    plant(client, "trajectories", trajectories(FIVE_TASKS))
    plant(client, "trajectories", trajectories({"other": [True]}, tenant="elsewhere"))
    return settings


def query(settings: Settings, *words: str) -> CommandResult:
    return stepstream(settings, "query", *words, "--since", "2026-11-20", "--until", "2026-11-21")


def test_query_prints_a_tenants_rows_as_json_csv_and_table(planted: Settings) -> None:
    found = json.loads(query(planted, "task_outcomes", "--format", "json").stdout)
    assert [(row["task_id"], row["successes"]) for row in found] == [
        ("t0", 8),
        ("t1", 6),
        ("t2", 3),
        ("t3", 0),
        ("t4", 4),
    ]
    rows = list(csv.DictReader(io.StringIO(query(planted, "task_outcomes", "--format", "csv").stdout)))
    assert [row["attempts"] for row in rows] == ["8", "8", "8", "8", "5"]
    table = query(planted, "task_outcomes", "--tenant", "elsewhere").stdout.splitlines()
    assert len(table) == 2
    assert "other" in table[1]


def test_query_groups_by_other_dimensions(planted: Settings) -> None:
    found = json.loads(query(planted, "pass_rates", "--by", "day", "--format", "json").stdout)
    assert {row["day"] for row in found} == {"2026-11-20"}
    assert "agent" not in found[0]
    refused = query(planted, "pass_rates", "--by", "colour")
    assert refused.status == 2
    assert "cannot be grouped by colour" in refused.stderr


def test_query_writes_parquet(planted: Settings, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    assert query(planted, "task_outcomes", "--format", "parquet", "--output", str(file)).status == 0
    table = pyarrow.parquet.read_table(file)
    assert table["successes"].to_pylist() == [8, 6, 3, 0, 4]


def test_query_runs_sql_that_reads_within_limits(planted: Settings) -> None:
    found = stepstream(planted, "query", "--sql", "SELECT count() AS n FROM trajectories;", "--format", "json")
    assert json.loads(found.stdout) == [{"n": 38}]
    cut = stepstream(planted, "query", "--sql", "SELECT number FROM numbers(10)", "--limit", "3")
    assert (cut.status, len(cut.stdout.splitlines())) == (1, 4)
    for sql in (
        "TRUNCATE TABLE trajectories",
        "INSERT INTO trajectories (tenant) VALUES ('x')",
        "SELECT file('/etc/passwd')",
    ):
        refused = stepstream(planted, "query", "--sql", sql)
        assert refused.status == 1, sql
        assert "the store rejects the query" in refused.stderr


def test_query_lists_and_describes(settings: Settings) -> None:
    listed = stepstream(settings, "query", "--list").stdout
    assert [line.split()[0] for line in listed.splitlines()] == list(views())
    assert "task_id" in stepstream(settings, "query", "task_outcomes", "--describe").stdout
