"""Test that a database of an earlier release keeps its data when it gets the tables of later migrations."""

import datetime
from collections.abc import Iterator
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from stepstream.config import Settings
from stepstream.jobs.clickhouse import connection
from stepstream.jobs.clickhouse.migrate import Migration, migrate, migrations

AT = datetime.datetime(2026, 1, 1, 10, 20, 30, 123456, datetime.UTC)
SOURCE = "00000000-0000-7000-8000-00000000000a"
WHO = {"trajectory_id": "t", "agent": "a", "model": "m", "consent": "train", "split": "train", "track": "stable"}
STEP: dict[str, Any] = WHO | {"tenant": "ours", "step_index": 3, "occurred_at": AT, "source_event_id": SOURCE}
STEP |= {"user": "ada", "version_min": 2, "prompt_tokens": 5, "messages": "[1]", "tools": ["get"]}
LABEL: dict[str, Any] = WHO | {"tenant": "ours", "occurred_at": AT, "started_at": AT, "ended_at": AT, "steps": 1}
LABEL |= {"reward": 0.75, "success": True, "tool_calls": {"get": 2, "put": 1}, "tool_errors": {"get": 1}}
COMPONENT: dict[str, Any] = {"tenant": "ours", "trajectory_id": "t", "step_index": 3, "weight": 1.0}
OLD: dict[str, list[dict[str, Any]]] = {
    "steps": [
        STEP | {"event_id": "g0", "policy_version": 0},
        STEP | {"event_id": "g1", "policy_version": 1, "error": "timeout", "duration_ms": 2.5},
    ],
    "trajectories": [LABEL | {"event_id": "l1", "revision": 1}, LABEL | {"event_id": "l2", "revision": 2}],
    # A revision with fewer steps leaves rows of the one before.
    "trajectory_steps": [
        {"tenant": "ours", "trajectory_id": "t", "step_index": 3, "revision": 1, "event_id": "g0", "label_id": "l1"},
        {"tenant": "ours", "trajectory_id": "t", "step_index": 4, "revision": 1, "event_id": "x", "label_id": "l1"},
        {"tenant": "ours", "trajectory_id": "t", "step_index": 3, "revision": 2, "event_id": "g1", "label_id": "l2"}
        | {"reward": 0.75, "return_to_go": 0.5, "response_tokens": 4, "error": "timeout", "duration_ms": 2.5},
    ],
    "reward_components": [
        COMPONENT | {"label_id": "l1", "revision": 1, "name": "old", "value": 1.0},
        COMPONENT | {"label_id": "l2", "revision": 2, "name": "outcome", "value": 0.75, "final": True},
    ],
    "feedback": [
        {"tenant": "ours", "trajectory_id": "t", "event_id": "f", "source_event_id": SOURCE, "occurred_at": AT}
        | {"name": "thumbs", "value": 1.0}
    ],
    "closures": [{"tenant": "ours", "trajectory_id": "t", "event_id": "c", "occurred_at": AT, "reason": "idle"}],
    "curation": [{"tenant": "ours", "trajectory_id": "t", "event_id": "h", "occurred_at": AT, "action": "hold"}],
    "governance_audit": [
        {"tenant": "ours", "trajectory_id": "t", "event_id": "u", "occurred_at": AT, "found": {"email": 2}}
    ],
    "training_decisions": [
        {"tenant": "ours", "trajectory_id": "t", "event_id": "d", "occurred_at": AT, "outcome": "trained"}
    ],
    # Sums over all tenants, and alarms about them.
    "component_stats": [
        {"key": "k", "agent": "a", "names": ["reward"], "kinds": ["reward"], "weights": [1.0]}
        | {"trajectories": [2], "totals": [1.0], "squares": [1.0]}
    ],
    "alarms": [
        {"alarm_id": kind, "kind": kind, "state": "raised", "occurred_at": AT} for kind in ("success", "engine_gap")
    ],
}
FACTS = {
    "steps": (
        "SELECT tenant, step_index, governed_by, user, error, version_min, version_max, tools, "
        "source_key = reinterpretAsUInt64(substring(MD5({source:String}), 1, 8)), toUnixTimestamp64Milli(occurred_at) "
        "FROM steps FINAL",
        [("ours", 3, 1, "ada", "timeout", 2, -1, ["get"], True, 1767262830123)],
    ),
    "step_contents": ("SELECT event_id, source_event_id, messages FROM step_contents FINAL", [("g1", SOURCE, "[1]")]),
    "trajectories": (
        "SELECT revision, label_id, reward, success, steps, errors, duration_ms, step.index, step.reward, "
        "step.return_to_go, step.tokens, call.tool, call.error, call.ms, opened_at = started_at "
        "FROM trajectories FINAL",
        [
            (
                2,
                "l2",
                0.75,
                True,
                1,
                1,
                2.5,
                [3],
                [0.75],
                [0.5],
                [4],
                ["get", "get", "put"],
                ["failed", "", ""],
                [-1.0] * 3,
                True,
            )
        ],
    ),
    "feedback": ("SELECT tenant, event_id, step_index, value FROM feedback FINAL", [("ours", "f", -1, 1.0)]),
    "closures": ("SELECT tenant, event_id, reason FROM closures FINAL", [("ours", "c", "idle")]),
    "curation": ("SELECT tenant, event_id, action FROM curation FINAL", [("ours", "h", "hold")]),
    "governance_audit": ("SELECT tenant, event_id, found FROM governance_audit FINAL", [("ours", "u", {"email": 2})]),
    "training_decisions": (
        "SELECT tenant, event_id, outcome FROM training_decisions FINAL",
        [("ours", "d", "trained")],
    ),
    "component_stats": ("SELECT tenant, agent, trajectories, mean FROM component_means", [("default", "a", 2, 0.5)]),
    "alarms": (
        "SELECT tenant, kind, state FROM alarms_now ORDER BY kind",
        [("", "engine_gap", "raised"), ("default", "success", "raised")],
    ),
    # The step names Ada, the label nobody.
    "trajectory_times": (
        "SELECT tenant, user_key = sipHash64('ada'), toUnixTimestamp64Milli(first), first = last "
        "FROM trajectory_times FINAL ORDER BY user_key",
        [("ours", named, 1767262830123, True) for named in (False, True)],
    ),
}
"""Queries of what the old rows become, and their results."""


@pytest.fixture(scope="module")
def server(store_settings: Settings) -> Iterator[Client]:
    with connection.connect(store_settings) as client:
        yield client


def run(client: Client, some: list[Migration]) -> None:
    for migration in some:
        for statement in migration.statements():
            client.command(statement)


def write_old_rows(client: Client) -> list[str]:
    """Insert the rows, as far as the release has their tables and columns; return the tables."""
    found: dict[str, set[str]] = {}
    for table, column in client.query(
        "SELECT table, name FROM system.columns WHERE database = currentDatabase()"
    ).result_rows:
        found.setdefault(table, set()).add(column)
    for table, rows in OLD.items():
        for row in rows if table in found else []:
            known = {name: value for name, value in row.items() if name in found[table]}
            client.insert(table, [list(known.values())], column_names=list(known))
    return [table for table in OLD if table in found]


def check(client: Client, written: list[str]) -> None:
    for table, (query, expected) in FACTS.items():
        if table in written or table not in OLD:
            rows = client.query(query, parameters={"source": SOURCE}).result_rows
            assert [tuple(row) for row in rows] == expected, table
    left = "SELECT name FROM system.tables WHERE database = currentDatabase() AND name LIKE '%\\_0015'"
    assert client.query(left).result_rows == []


@pytest.mark.parametrize("last", ["0011", "0012", "0014", "0015"])
def test_a_database_of_an_earlier_release_keeps_its_data(store_settings: Settings, server: Client, last: str) -> None:
    """From 0.1.0 (migration 0011), and from each later migration that changed a moved table."""
    database = f"from_{last}"
    server.command(f"CREATE DATABASE {database}")
    settings = store_settings.model_copy(
        update={"clickhouse": store_settings.clickhouse.model_copy(update={"database": database})}
    )
    with connection.connect(settings, database=database) as client:
        run(client, [one for one in migrations() if one.name[:4] <= last])
        written = write_old_rows(client)
        migrate(settings)
        check(client, written)
    server.command(f"DROP DATABASE {database} SYNC")


def test_an_interrupted_move_is_continued(store_settings: Settings, server: Client) -> None:
    database = "interrupted"
    settings = store_settings.model_copy(
        update={"clickhouse": store_settings.clickhouse.model_copy(update={"database": database})}
    )
    facts = next(one for one in migrations() if one.name.startswith("0016"))
    statements = facts.statements()
    for after in (3, 9, len(statements)):
        server.command(f"DROP DATABASE IF EXISTS {database} SYNC")
        server.command(f"CREATE DATABASE {database}")
        with connection.connect(settings, database=database) as client:
            run(client, [one for one in migrations() if one.name < facts.name])
            written = write_old_rows(client)
            client.command(
                "CREATE TABLE schema_migrations (name String, sha256 String, applied_at DateTime64(3, 'UTC') "
                "DEFAULT now64(3)) ENGINE = ReplacingMergeTree(applied_at) ORDER BY name"
            )
            done = [(one.name, one.sha256) for one in migrations() if one.name < facts.name]
            client.insert("schema_migrations", done, column_names=["name", "sha256"])
            for statement in statements[:after]:
                client.command(statement)
            migrate(settings)
            check(client, written)
    server.command(f"DROP DATABASE {database} SYNC")
