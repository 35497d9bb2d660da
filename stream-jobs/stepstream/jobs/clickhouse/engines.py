"""Replace the version column of tables: ClickHouse cannot change the parameters of an engine."""

import logging

from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

_TABLES = ("trajectories", "trajectory_steps")
_BEFORE, _AFTER = "revision)", "precedence)"


def replace_engines(client: Client) -> None:
    """Give the tables of labels the version column `precedence` in place of `revision`.

    1. Create `TABLE_next` with the new engine, and copy the rows.
    2. Rename `TABLE` to `TABLE_before`, and `TABLE_next` to `TABLE`.
    3. Copy the rows of `TABLE_before` that came meanwhile, and drop it.

    An interrupted run is continued. The engine removes copies, so that rows may be copied twice.
    """
    for table in _TABLES:
        engines = _engines(client, table)
        following, before = f"{table}_next", f"{table}_before"
        if _BEFORE in engines.get(table, ""):
            log.info("replacing the engine of table %s", table)
            engine = engines[table].replace(_BEFORE, _AFTER)
            client.command(f"CREATE TABLE IF NOT EXISTS {following} AS {table} ENGINE = {engine}")
            _copy(client, table, following)
            client.command(f"RENAME TABLE {table} TO {before}, {following} TO {table}")
        elif table not in engines:  # interrupted between the two names
            client.command(f"RENAME TABLE {following} TO {table}")
        if before in _engines(client, table):
            _copy(client, before, table)
            client.command(f"DROP TABLE {before} SYNC")


def _engines(client: Client, table: str) -> dict[str, str]:
    """Return the engine with its parameters of a table and of its copies, by name."""
    which = "database = currentDatabase() AND name IN {names:Array(String)}"
    names = [table, f"{table}_next", f"{table}_before"]
    rows = client.query(f"SELECT name, engine_full FROM system.tables WHERE {which}", parameters={"names": names})
    return {str(name): str(engine) for name, engine in rows.result_rows}


def _copy(client: Client, source: str, target: str) -> None:
    client.command(f"INSERT INTO {target} SELECT * FROM {source}")
