"""Test `stepstream query` on the embedded store."""

import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet
import pytest
from clickhouse_connect.driver.client import Client
from command_line import CommandResult, stepstream
from view_rows import attempt, five_tasks, plant

from stepstream.config import Settings, environment_of
from stepstream.jobs.clickhouse.views import views


@pytest.fixture
def planted(view_client: Client, view_settings: Settings) -> Settings:
    plant(view_client, "trajectories", [*five_tasks(), attempt("other/0", True, tenant="elsewhere")])
    return view_settings


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
    families = query(planted, "pass_rates", "--by", "task_family", "--format", "json", "--limit", "1")
    (family,) = json.loads(families.stdout)
    assert family["pass_at_k_low"] <= family["pass_at_k"] <= family["pass_at_k_high"]
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


def test_query_lists_and_describes(view_settings: Settings) -> None:
    listed = stepstream(view_settings, "query", "--list").stdout
    assert [line.split()[0] for line in listed.splitlines()] == list(views())
    assert "task_id" in stepstream(view_settings, "query", "task_outcomes", "--describe").stdout


def test_query_adds_bootstrap_intervals_over_tasks(planted: Settings) -> None:
    found = json.loads(query(planted, "pass_rates", "--format", "json").stdout)
    first = found[0]
    assert (first["k"], first["pass_at_k"]) == (1, pytest.approx(0.585))
    assert (first["pass_at_k_low"], first["pass_at_k_high"]) == pytest.approx((0.235, 0.87), abs=0.02)
    assert first["reason"] == "fewer than 10 tasks (5): the interval is too narrow"


def test_query_adds_the_p_value_of_a_coupling(view_client: Client, view_settings: Settings) -> None:
    scores = {("0", "0"): "1011", ("0", "1"): "1010", ("1", "0"): "1111", ("1", "1"): "0010"}
    rows = [
        attempt(f"q{q}/{a}{b}", y == "1", harness_version=f"planner={a};solver={b}")
        for (a, b), answers in scores.items()
        for q, y in enumerate(answers)
    ]
    plant(view_client, "trajectories", rows)
    (row,) = json.loads(query(view_settings, "coin_flip", "--format", "json").stdout)
    assert (row["f"], row["p"]) == pytest.approx((1.8, 0.21258), abs=1e-6)


def test_the_notebook_runs(planted: Settings) -> None:
    page = (Path(__file__).parents[2] / "docs" / "notebook.md").read_text("utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    names: dict[str, Any] = {}
    with patch.dict(os.environ, environment_of(planted)):
        exec(compile(code, "docs/notebook.md", "exec"), names)
    with names["client"]:
        assert names["by_k"].loc[1, 3] == pytest.approx(0.585)
        assert names["estimates"][3].value == pytest.approx(0.585)
