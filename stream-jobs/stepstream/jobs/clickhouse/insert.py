"""Inserts rows into ClickHouse in batches, waiting while it is away and setting aside what it can never take."""

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

_UNFIT = (DataError, ProgrammingError, TypeError, ValueError, OverflowError, AttributeError)
"""What the client raises while it builds columns: the rows' own fault, before anything is sent."""
_AWAY = (ClickHouseError, StoreUnavailableError)


class Inserter:
    """Writes to the tables of `rows.py`. Use from one thread."""

    def __init__(self, settings: ClickHouseSettings, cancelled: Callable[[], bool]) -> None:
        self._settings = settings
        self._cancelled = cancelled
        self._client: Client | None = None
        self._contexts: dict[str, InsertContext] = {}

    def insert(self, table: str, rows: Sequence[Row]) -> list[int]:
        """Inserts rows; returns the places of those that cannot be inserted at all.

        A store that is away or refuses the insert is asked again and again: nothing is given up.

        Raises:
            Abandoned: asked to give up while waiting.
        """
        try:
            retry_while(lambda: self._try(table, rows), _AWAY, self._cancelled)
        except _Unfit:
            if len(rows) == 1:
                return [0]
            middle = len(rows) // 2
            unfit = self.insert(table, rows[:middle])
            return unfit + [middle + place for place in self.insert(table, rows[middle:])]
        return []

    def delete(self, table: str, column: str, value: str) -> None:
        """Deletes the rows of a value for good, one event after the other.

        Raises:
            Abandoned: asked to give up while waiting for the store.
        """
        retry_while(lambda: self._try_to_delete(table, column, value), _AWAY, self._cancelled)

    def close(self) -> None:
        """Frees the connection."""
        if self._client is not None:
            self._client.close()

    def _connected(self) -> Client:
        if self._client is None:
            self._client = connect(self._settings, database=self._settings.database)
        return self._client

    def _try_to_delete(self, table: str, column: str, value: str) -> None:
        client = self._connected()
        found = client.query(f"SELECT event_id FROM {table} WHERE {column} = {{value:String}}", {"value": value})
        for (event_id,) in found.result_rows:
            # By id, since ClickHouse keeps the text of a mutation, and the value may name a person.
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
        except _UNFIT as error:
            del self._contexts[table]
            raise _Unfit from error
        except ClickHouseError:
            # The next try starts from scratch: the connection, or what is known of the table, may be stale.
            self._contexts.clear()
            client.close()
            self._client = None
            raise


class _Unfit(Exception):
    """Rows that do not fit the table."""
