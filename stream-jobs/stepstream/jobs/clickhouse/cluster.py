"""Render DDL for one server, or for the replicas of a cluster (`clickhouse.cluster`). Pure.

On a cluster, every statement that creates, changes or drops a table or view runs on all replicas, and every table is
replicated. A table's path in Keeper has its UUID, not its name: migrations rename tables and reuse the names. Each
server defines the macros `shard` and `replica`. Views of inserts run on the replica that takes the insert, and their
targets are replicated too. Every replica refreshes the rollups: it writes the same sums as the others.
"""

import re

_NAME = r"(?:`(?:[^`\\]|\\.)+`|\w+)"
_STATEMENT = re.compile(
    rf"^(?:(?:CREATE (?:DATABASE|TABLE|MATERIALIZED VIEW) IF NOT EXISTS|CREATE OR REPLACE VIEW|"
    rf"DROP (?:TABLE|VIEW) IF EXISTS|ALTER TABLE) {_NAME}|RENAME TABLE {_NAME} TO {_NAME})",
    re.MULTILINE,
)
_ENGINE = re.compile(r"^ENGINE = (\w*MergeTree)(?:\((\w*)\))?", re.MULTILINE)
_PATH = "'/clickhouse/tables/{uuid}/{shard}', '{replica}'"


def render(statement: str, cluster: str) -> str:
    """Return a statement as the store needs it; an empty `cluster`: unchanged. Those that change rows stay the same."""
    if not cluster:
        return statement
    name = cluster.replace("\\", "\\\\").replace("'", "\\'")
    placed = _STATEMENT.sub(lambda found: f"{found[0]} ON CLUSTER '{name}'", statement, count=1)
    engine = _ENGINE.sub(_replicated, placed, count=1)
    return engine.replace(" non_replicated_deduplication_window", " replicated_deduplication_window")


def _replicated(found: re.Match[str]) -> str:
    return f"ENGINE = Replicated{found[1]}({', '.join(filter(None, (_PATH, found[2])))})"
