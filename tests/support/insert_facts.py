"""Insert the rows of records into the tables of facts, as the sink does."""

from collections.abc import Sequence
from typing import Any

from clickhouse_connect.driver.client import Client

from stepstream.jobs.clickhouse.rows import TABLES, rows


def insert(client: Client, events: Sequence[tuple[str, Any]]) -> None:
    """Insert the rows of (topic, record), a batch a table."""
    batches: dict[str, list[Any]] = {}
    for topic, record in events:
        for table, row in rows(topic, record):
            batches.setdefault(table, []).append(row)
    for table, batch in batches.items():
        client.insert(table, batch, column_names=TABLES[table].columns)
