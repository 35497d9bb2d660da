"""Insert rows into ClickHouse in batches: retry while it is unavailable, and report rows that do not fit."""

import logging
from collections.abc import Callable, Sequence

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DataError, ProgrammingError
from clickhouse_connect.driver.insert import InsertContext

from stepstream.config import ClickHouseSettings
from stepstream.jobs.clickhouse.connection import StoreUnavailableError, connect
from stepstream.jobs.clickhouse.rows import TABLES, Row
from stepstream.jobs.runtime.retry import retry_while

log = logging.getLogger(__name__)

_CLIENT_ERRORS = (DataError, ProgrammingError, TypeError, ValueError, OverflowError, AttributeError)
"""Errors of the client while it builds columns: the rows are at fault, and nothing was sent."""
_UNAVAILABLE = (ClickHouseError, StoreUnavailableError)


class Inserter:
    """Writes to the tables of `rows.py`. Use it from one thread."""

    def __init__(self, settings: ClickHouseSettings, cancelled: Callable[[], bool]) -> None:
        self._settings = settings
        self._cancelled = cancelled
        self._client: Client | None = None
        self._contexts: dict[str, InsertContext] = {}

    def insert(self, table: str, rows: Sequence[Row]) -> list[int]:
        """Insert rows; return the indices of those that do not fit the table. A failed insert is retried without limit.

        Raises:
            Cancelled: `cancelled` returned True while ClickHouse was unavailable.
        """
        try:
            retry_while(lambda: self._try(table, rows), _UNAVAILABLE, self._cancelled)
        except _InvalidRows:
            if len(rows) == 1:
                return [0]
            middle = len(rows) // 2
            invalid = self.insert(table, rows[:middle])
            return invalid + [middle + index for index in self.insert(table, rows[middle:])]
        return []

    def delete(self, table: str, column: str, value: str) -> None:
        """Delete the rows with a value permanently, one event at a time.

        Raises:
            Cancelled: `cancelled` returned True while ClickHouse was unavailable.
        """
        retry_while(lambda: self._try_to_delete(table, column, value), _UNAVAILABLE, self._cancelled)

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    def _connected(self) -> Client:
        if self._client is None:
            self._client = connect(self._settings, database=self._settings.database)
        return self._client

    def _try_to_delete(self, table: str, column: str, value: str) -> None:
        client = self._connected()
        rows = client.query(f"SELECT event_id FROM {table} WHERE {column} = {{value:String}}", {"value": value})
        for (event_id,) in rows.result_rows:
            # By id: ClickHouse saves the text of a mutation, and the value may name a person.
            client.command(
                f"ALTER TABLE {table} DELETE WHERE event_id = {{id:String}}",
                {"id": event_id},
                settings={"mutations_sync": 2},
            )

    def _try(self, table: str, rows: Sequence[Row]) -> None:
        client = self._connected()
        context = self._contexts.get(table)
        if context is None:
            columns = TABLES[table].columns
            context = client.create_insert_context(table, column_names=columns)
            self._contexts[table] = context
        try:
            context.data = rows
            client.insert(context=context)
        except _CLIENT_ERRORS as error:
            del self._contexts[table]
            raise _InvalidRows from error
        except ClickHouseError:
            # The connection or the cached columns may be stale: the next attempt starts without them.
            self._contexts.clear()
            client.close()
            self._client = None
            raise


class _InvalidRows(Exception):
    """Rows that do not fit the table."""
