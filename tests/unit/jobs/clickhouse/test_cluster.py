"""DDL for a cluster: every statement runs on all replicas, and every table is replicated."""

import pytest

from stepstream.jobs.clickhouse.cluster import render
from stepstream.jobs.clickhouse.migrate import migrations

PATH = "'/clickhouse/tables/{uuid}/{shard}', '{replica}'"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (
            "-- Facts.\nCREATE TABLE IF NOT EXISTS steps\n(a String)\nENGINE = ReplacingMergeTree(governed_by)\n"
            "ORDER BY a\nSETTINGS non_replicated_deduplication_window = 1000",
            "-- Facts.\nCREATE TABLE IF NOT EXISTS steps ON CLUSTER 'c'\n(a String)\n"
            f"ENGINE = ReplicatedReplacingMergeTree({PATH}, governed_by)\n"
            "ORDER BY a\nSETTINGS replicated_deduplication_window = 1000",
        ),
        ("ENGINE = AggregatingMergeTree\nORDER BY a", f"ENGINE = ReplicatedAggregatingMergeTree({PATH})\nORDER BY a"),
        ("RENAME TABLE a TO b", "RENAME TABLE a TO b ON CLUSTER 'c'"),
        ("DROP VIEW IF EXISTS a SYNC", "DROP VIEW IF EXISTS a ON CLUSTER 'c' SYNC"),
        ("CREATE DATABASE IF NOT EXISTS `a b`", "CREATE DATABASE IF NOT EXISTS `a b` ON CLUSTER 'c'"),
        ("INSERT INTO a SELECT * FROM b", "INSERT INTO a SELECT * FROM b"),
    ],
)
def test_a_statement_runs_on_all_replicas(statement: str, expected: str) -> None:
    assert render(statement, "c") == expected
    assert render(statement, "") == statement


def test_the_name_of_the_cluster_is_quoted() -> None:
    assert render("ALTER TABLE a REMOVE TTL", "c's") == "ALTER TABLE a ON CLUSTER 'c\\'s' REMOVE TTL"


def test_no_statement_of_the_migrations_is_for_one_replica_alone() -> None:
    for migration in migrations():
        for statement in migration.statements():
            text = render(statement, "c")
            changes_rows = "\nINSERT INTO" in f"\n{text}"
            assert ("ON CLUSTER 'c'" in text) is not changes_rows, text
            assert "ENGINE = Replacing" not in text
            assert "non_replicated" not in text
            assert ("CREATE TABLE" in text) is ("ENGINE = Replicated" in text), text
