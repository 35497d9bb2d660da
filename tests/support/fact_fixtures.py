"""Provide the tables of facts of a module's own database, empty for each test; the module defines `settings`."""

from collections.abc import Iterator
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from stepstream.config import Settings
from stepstream.jobs.clickhouse import connection
from stepstream.jobs.clickhouse.insert import Inserter
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.jobs.clickhouse.rows import TABLES, rows


@pytest.fixture(scope="module")
def inserter(settings: Settings) -> Iterator[Inserter]:
    """Insert rows into the migrated database, as the sink does."""
    migrate(settings)
    made = Inserter(settings, lambda: False)
    yield made
    made.close()


@pytest.fixture
def facts(settings: Settings, inserter: Inserter) -> Iterator[Client]:
    """Ask the database, whose tables of facts are empty."""
    with connection.connect(settings, database=settings.clickhouse.database) as client:
        for table in (*TABLES, "trajectory_times"):
            client.command(f"TRUNCATE TABLE {table}")
        yield client


def put(inserter: Inserter, topic: str, *records: Any) -> None:
    """Insert the rows of records one by one."""
    for record in records:
        for table, row in rows(topic, record):
            assert inserter.insert(table, [row]) == {}
