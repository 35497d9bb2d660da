"""Replace the version column and the sorting key of tables: ClickHouse cannot change the parameters of an engine."""

import logging
import re
from dataclasses import dataclass

from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

_SORTED = re.compile(r"ORDER BY (?:\([^)]*\)|\w+)")
_COPY = "INSERT INTO {target} SELECT * FROM {source}"
# Rows of releases that named trajectories by their id alone: then an id belonged to one tenant.
_WITH_TENANT = (
    "INSERT INTO {target} SELECT s.* REPLACE (if(s.tenant = '', t.tenant, s.tenant) AS tenant) FROM {source} AS s "
    "LEFT ANY JOIN (SELECT trajectory_id, any(tenant) AS tenant FROM trajectories GROUP BY trajectory_id) AS t "
    "ON t.trajectory_id = s.trajectory_id"
)


@dataclass(frozen=True, slots=True)
class _Engine:
    """Parameters of a table's engine that a migration cannot change."""

    key: str
    """Sorting key: the identity of a row."""
    copy: str = _COPY
    """Statement that copies the rows of `source` to `target`."""
    version_before: str = ""
    """Version column of the first releases, which `precedence` replaces; empty: it stays."""

    def of(self, engine: str) -> str:
        """Return the engine with its parameters, with what is different replaced."""
        if self.version_before:
            engine = engine.replace(f"({self.version_before})", "(precedence)", 1)
        return _SORTED.sub(f"ORDER BY ({self.key})", engine, count=1)


_ENGINES = {
    "steps": _Engine("tenant, trajectory_id, step_index, event_id"),
    "feedback": _Engine("tenant, trajectory_id, event_id"),
    "governance_audit": _Engine("tenant, trajectory_id, event_id"),
    "training_decisions": _Engine("tenant, trajectory_id, event_id"),
    "trajectories": _Engine("tenant, trajectory_id", version_before="revision"),
    "reward_components": _Engine("tenant, trajectory_id, step_index, name, revision, label_id"),
    # After `trajectories`, which knows their tenants.
    "trajectory_steps": _Engine("tenant, trajectory_id, step_index", _WITH_TENANT, version_before="revision"),
    "closures": _Engine("tenant, trajectory_id, event_id", _WITH_TENANT),
    "curation": _Engine("tenant, trajectory_id, event_id", _WITH_TENANT),
}


def replace_engines(client: Client) -> None:
    """Give each of the tables its present engine.

    1. Create `TABLE_next` with the new engine, and copy the rows.
    2. Rename `TABLE` to `TABLE_before`, and `TABLE_next` to `TABLE`.
    3. Copy the rows of `TABLE_before` that came meanwhile, and drop it.

    An interrupted run is continued. The engine removes copies, so that rows may be copied twice.
    """
    for table, wanted in _ENGINES.items():
        engines = _engines(client, table)
        following, before = f"{table}_next", f"{table}_before"
        if table in engines and (engine := wanted.of(engines[table])) != engines[table]:
            log.info("replacing the engine of table %s", table)
            if engines.get(following, engine) != engine:  # an earlier release was interrupted
                client.command(f"DROP TABLE {following} SYNC")
            client.command(f"CREATE TABLE IF NOT EXISTS {following} AS {table} ENGINE = {engine}")
            client.command(wanted.copy.format(source=table, target=following))
            client.command(f"RENAME TABLE {table} TO {before}, {following} TO {table}")
        elif table not in engines:  # interrupted between the two names
            client.command(f"RENAME TABLE {following} TO {table}")
        if before in _engines(client, table):
            client.command(wanted.copy.format(source=before, target=table))
            client.command(f"DROP TABLE {before} SYNC")


def _engines(client: Client, table: str) -> dict[str, str]:
    """Return the engine with its parameters of a table and of its copies, by name."""
    which = "database = currentDatabase() AND name IN {names:Array(String)}"
    names = [table, f"{table}_next", f"{table}_before"]
    rows = client.query(f"SELECT name, engine_full FROM system.tables WHERE {which}", parameters={"names": names})
    return {str(name): str(engine) for name, engine in rows.result_rows}
