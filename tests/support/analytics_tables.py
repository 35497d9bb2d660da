"""Create the analytics tables of shared/ANALYTICS.md, and plant rows in them."""

from collections.abc import Iterable
from typing import Any

from clickhouse_connect.driver.client import Client

_S = "LowCardinality(String)"
_WHO = ", ".join(
    [
        f"{name} {_S}"
        for name in ("agent", "model", "environment", "harness_version", "track", "split", "fidelity", "consent")
    ]
    + ["user String", "task_id String", "group_id String", "version_min Int32", "version_max Int32"]
)
_T = "DateTime64(3,'UTC') CODEC(Delta, ZSTD(1))"
_DDL = [
    f"""CREATE TABLE steps (tenant {_S}, trajectory_id String, step_index Int32, source_key UInt64, governed_by UInt32,
    occurred_at {_T}, {_WHO}, shared_tokens UInt32, prompt_tokens UInt32, response_tokens UInt32, logprob_sum Float32,
    tools Array({_S}), finish_reason {_S}, error {_S}, duration_ms Nullable(Float32), first_token_ms Nullable(Float32),
    cost_usd Nullable(Decimal(18,9)), trainable Bool, flags Array({_S}))
    ENGINE = ReplacingMergeTree(governed_by) PARTITION BY toDate(occurred_at)
    PRIMARY KEY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id)
    ORDER BY (tenant, toStartOfFiveMinutes(occurred_at), trajectory_id, step_index, source_key, occurred_at)""",
    f"""CREATE TABLE trajectories (tenant {_S}, trajectory_id String, revision UInt32, label_id UUID, opened_at {_T},
    ended_at {_T}, labelled_at {_T}, {_WHO}, parent_trajectory_id String, end {_S}, closed_by {_S}, complete Bool,
    success Nullable(Bool), reward Float64, reward_spec {_S}, reward_spec_version Int32, pending Array({_S}),
    flags Array({_S}), trainable Bool, steps UInt32, errors UInt32, prompt_tokens UInt64, response_tokens UInt64,
    cost_usd Nullable(Decimal(18,9)), duration_ms Float32,
    step Nested(reward Float32, return_to_go Float32, tokens UInt32),
    call Nested(step UInt16, tool {_S}, error {_S}, ms Float32),
    component Nested(step Int16, name {_S}, kind {_S}, source {_S}, value Float32, raw Float32, weight Float32,
    final Bool))
    ENGINE = ReplacingMergeTree(revision) PARTITION BY toDate(opened_at)
    PRIMARY KEY (tenant, toStartOfHour(opened_at), trajectory_id)
    ORDER BY (tenant, toStartOfHour(opened_at), trajectory_id, opened_at)""",
    f"""CREATE TABLE trajectory_hours (hour DateTime('UTC'), tenant {_S}, agent {_S}, model {_S}, environment {_S},
    harness_version {_S}, policy_version Int32, track {_S}, split {_S}, trajectories UInt64, outcomes UInt64,
    successes UInt64, truncated UInt64, steps UInt64, errors UInt64, calls UInt64, prompt_tokens UInt64,
    response_tokens UInt64, cost_usd Decimal(18,9), reward_sum Float64, reward_squares Float64, duration_ms_sum Float64,
    lag Nested(versions UInt32, trajectories UInt64), version DateTime64(6,'UTC'))
    ENGINE = ReplacingMergeTree(version) PARTITION BY toYYYYMM(hour)
    ORDER BY (hour, tenant, agent, model, environment, harness_version, policy_version, track, split)""",
]


TABLES = [statement.split()[2] for statement in _DDL]


def create_tables(client: Client) -> None:
    """Create the tables."""
    for statement in _DDL:
        client.command(statement)


def plant(client: Client, table: str, rows: Iterable[dict[str, Any]]) -> None:
    """Insert rows of the given columns; the others have their defaults."""
    for row in rows:
        client.insert(table, [list(row.values())], column_names=list(row))
