"""Apply the migrations `migrations/NNNN_name.sql` that are missing in ClickHouse, each once, in order.

ClickHouse has no transactions over DDL. So every statement can be repeated: a migration that was interrupted, or that
two processes apply at the same time, ends in the same state. A table is renamed only while its new name is free.
"""

import hashlib
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources

from clickhouse_connect.driver.client import Client

from stepstream.config import Settings
from stepstream.jobs.clickhouse import materialized_views, rollup_refresh
from stepstream.jobs.clickhouse.cluster import render
from stepstream.jobs.clickhouse.connection import connect_when_ready
from stepstream.jobs.clickhouse.create_views import create_views
from stepstream.jobs.clickhouse.retention import apply_retention, days_of

log = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{4}_\w+)\.sql\Z")
_RENAME = re.compile(r"RENAME TABLE \w+ TO (\w+)")
_RECORD = """
CREATE TABLE IF NOT EXISTS schema_migrations
(
    name String,
    sha256 String,
    applied_at DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree(applied_at)
ORDER BY name
"""


class MigrationError(Exception):
    """Migration that was changed after it had been applied."""


@dataclass(frozen=True)
class Migration:
    """File of `migrations/`."""

    name: str
    text: str

    @property
    def sha256(self) -> str:
        """Hex digest of its text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def statements(self) -> list[str]:
        """Return its statements; each ends with a semicolon at the end of a line."""
        parts = re.split(r";[ \t]*(?:\n|\Z)", self.text)
        return [part.strip() for part in parts if re.sub(r"--[^\n]*", "", part).strip()]


def migrations() -> list[Migration]:
    """Return all migrations in order."""
    files = resources.files("stepstream.jobs.clickhouse") / "migrations"
    named = [(found[1], file) for file in files.iterdir() if (found := _NAME.match(file.name))]
    return [Migration(name, file.read_text("utf-8")) for name, file in sorted(named, key=lambda pair: pair[0])]


def missing_migrations(client: Client) -> list[str]:
    """Return the names of the migrations of this release that the database lacks, or that have not ended.

    Raises:
        ClickHouseError: the store is unavailable, or was never migrated.
    """
    recorded = _recorded(client)
    return [migration.name for migration in migrations() if migration.name not in recorded]


def migrate(settings: Settings, *, stopped: Callable[[], bool] = lambda: False) -> list[str]:
    """Apply the missing migrations, replace views and refreshes, set TTLs; return the names of the migrations.

    Blocks until ClickHouse is ready, at most `clickhouse.deadline_s` or until `stopped`.

    Raises:
        StoreUnavailableError: ClickHouse did not become ready.
        MigrationError: the text of an applied migration has changed.
    """
    database, cluster = settings.clickhouse.database, settings.clickhouse.cluster
    quoted = "`" + database.replace("`", "\\`") + "`"
    server = connect_when_ready(settings, stopped=stopped)
    server.command(render(f"CREATE DATABASE IF NOT EXISTS {quoted}", cluster))
    server.close()
    client = connect_when_ready(settings, database=database, stopped=stopped)
    try:
        applied = _apply(client, cluster)
        days = days_of(settings.store)
        apply_retention(client, days, cluster)
        rollup_refresh.create_refreshes(client, days, settings.clickhouse.refresh_s, cluster)
        materialized_views.create_refreshes(client, days, settings.clickhouse.refresh_s, cluster)
        return applied
    finally:
        client.close()


def _apply(client: Client, cluster: str) -> list[str]:
    client.command(render(_RECORD, cluster))
    recorded = _recorded(client)
    applied = []
    for migration in migrations():
        if migration.name in recorded:
            if recorded[migration.name] != migration.sha256:
                raise MigrationError(
                    f"migration {migration.name} was changed after it was applied: restore its text and write the "
                    "change as a new migration"
                )
            continue
        for statement in migration.statements():
            if not _is_renamed(client, statement):
                client.command(render(statement, cluster))
        client.insert("schema_migrations", [(migration.name, migration.sha256)], column_names=["name", "sha256"])
        log.info("applied migration %s", migration.name)
        applied.append(migration.name)
    materialized_views.create_tables(client, cluster)
    create_views(client, cluster)
    return applied


def _recorded(client: Client) -> dict[str, str]:
    """Return the digests of the texts of the applied migrations by name."""
    rows = client.query("SELECT name, sha256 FROM schema_migrations FINAL").result_rows
    return {str(name): str(sha256) for name, sha256 in rows}


def _is_renamed(client: Client, statement: str) -> bool:
    renamed = _RENAME.search(statement)
    return renamed is not None and bool(client.command(f"EXISTS TABLE {renamed[1]}"))
