"""Insert rows into ClickHouse in batches: retry while it is unavailable, and report the rows that it refuses.

An error of the network, of resources or of access mends without a change of the rows: it is retried. An error of a
value (type, range, null) refuses single rows, which are searched by halves. An error of the table (unknown column,
missing table, other number of columns) refuses all rows of the batch. Both are reported after a second attempt with a
new connection, since the cached columns may be older than the table.
"""

import logging
from collections.abc import Callable, Sequence

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError, DataError, ProgrammingError
from clickhouse_connect.driver.insert import InsertContext

from stepstream.config import Settings
from stepstream.jobs.clickhouse import hidden_rows, materialized_views
from stepstream.jobs.clickhouse.columns import Row
from stepstream.jobs.clickhouse.connection import StoreUnavailableError, connect
from stepstream.jobs.clickhouse.number_sets import drop_left_sets
from stepstream.jobs.clickhouse.rollup_refresh import refresh_lag_s
from stepstream.jobs.clickhouse.rows import TABLES
from stepstream.jobs.runtime.retry import retry_while

log = logging.getLogger(__name__)

_CLIENT_ERRORS = (DataError, ProgrammingError, TypeError, ValueError, OverflowError, AttributeError)
"""Errors of the client while it builds columns: the rows are at fault, and nothing was sent."""
_UNAVAILABLE = (ClickHouseError, StoreUnavailableError)
_ROW_REFUSALS = {
    6: "CANNOT_PARSE_TEXT",
    26: "CANNOT_PARSE_QUOTED_STRING",
    27: "CANNOT_PARSE_INPUT_ASSERTION_FAILED",
    32: "ATTEMPT_TO_READ_AFTER_EOF",
    33: "CANNOT_READ_ALL_DATA",
    38: "CANNOT_PARSE_DATE",
    41: "CANNOT_PARSE_DATETIME",
    53: "TYPE_MISMATCH",
    69: "ARGUMENT_OUT_OF_BOUND",
    70: "CANNOT_CONVERT_TYPE",
    72: "CANNOT_PARSE_NUMBER",
    117: "INCORRECT_DATA",
    131: "TOO_LARGE_STRING_SIZE",
    321: "VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE",
    349: "CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN",
    407: "DECIMAL_OVERFLOW",
    469: "VIOLATED_CONSTRAINT",
    691: "UNKNOWN_ELEMENT_OF_ENUM",
}
_TABLE_REFUSALS = {
    8: "THERE_IS_NO_COLUMN",
    10: "NOT_FOUND_COLUMN_IN_BLOCK",
    16: "NO_SUCH_COLUMN_IN_TABLE",
    20: "NUMBER_OF_COLUMNS_DOESNT_MATCH",
    43: "ILLEGAL_TYPE_OF_ARGUMENT",
    44: "ILLEGAL_COLUMN",
    47: "UNKNOWN_IDENTIFIER",
    50: "UNKNOWN_TYPE",
    60: "UNKNOWN_TABLE",
}
"""ClickHouse's codes of permanent errors; every other code is retried."""


class Inserter:
    """Writes to the tables of `rows.py`. Use it from one thread."""

    def __init__(self, settings: Settings, cancelled: Callable[[], bool]) -> None:
        self._settings = settings
        self._cancelled = cancelled
        self._client: Client | None = None
        self._contexts: dict[str, InsertContext] = {}

    def insert(self, table: str, rows: Sequence[Row]) -> dict[int, str]:
        """Insert rows; return the reason by the index of each row that ClickHouse refuses for ever.

        A failed insert is retried without limit.

        Raises:
            Cancelled: `cancelled` returned True while ClickHouse was unavailable.
        """
        try:
            retry_while(lambda: self._try_twice(table, rows), _UNAVAILABLE, self._cancelled)
        except _Refused as refused:
            if refused.all_rows or len(rows) == 1:
                log.error("ClickHouse refuses %d rows: %s", len(rows), refused)
                return dict.fromkeys(range(len(rows)), str(refused))
            middle = len(rows) // 2
            invalid = self.insert(table, rows[:middle])
            return invalid | {middle + index: why for index, why in self.insert(table, rows[middle:]).items()}
        return {}

    def delete(self, table: str, column: str, value: str) -> str | None:
        """Delete the rows with a value permanently, one event at a time; return the reason if ClickHouse refuses.

        Raises:
            Cancelled: `cancelled` returned True while ClickHouse was unavailable.
        """
        try:
            retry_while(lambda: self._try_to_delete(table, column, value), _UNAVAILABLE, self._cancelled)
        except _Refused as refused:
            log.error("ClickHouse refuses to delete from %s: %s", table, refused)
            return str(refused)
        return None

    def refresh_lag_s(self) -> float | None:
        """Return the lag of the rollups in seconds, as `rollup_refresh.refresh_lag_s`; None: ClickHouse is away."""
        try:
            return refresh_lag_s(self._connected())
        except _UNAVAILABLE:
            return None  # the next insert waits for it, and says so

    def rewriting_age_s(self) -> float | None:
        """Return the age of a rewriting in seconds, as `hidden_rows.rewriting_age_s`; None: ClickHouse is away."""
        try:
            return hidden_rows.rewriting_age_s(self._connected())
        except _UNAVAILABLE:
            return None

    def begin_rewriting(self, since_s: int) -> dict[str, int] | None:
        """Begin to rewrite parts with hidden rows, as `hidden_rows.begin_rewriting`; None: ClickHouse is away.

        After that, begin to delete the rows of views that were replaced, and drop sets that an erasure left.
        """
        try:
            begun = hidden_rows.begin_rewriting(self._connected(), since_s)
            materialized_views.begin_to_delete_replaced_rows(self._connected())
            drop_left_sets(self._connected())
            return begun
        except DatabaseError as error:
            log.warning("ClickHouse does not rewrite parts with hidden rows, tried again: %s", str(error)[:300])
            return None
        except _UNAVAILABLE:
            return None

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    def _connected(self) -> Client:
        if self._client is None:
            self._client = connect(self._settings, database=self._settings.clickhouse.database)
        return self._client

    def _try_to_delete(self, table: str, column: str, value: str) -> None:
        client = self._connected()
        try:
            rows = client.query(f"SELECT event_id FROM {table} WHERE {column} = {{value:String}}", {"value": value})
            for (event_id,) in rows.result_rows:
                # By id: ClickHouse saves the text of a mutation, and the value may name a person.
                client.command(
                    f"ALTER TABLE {table} DELETE WHERE event_id = {{id:String}}",
                    {"id": event_id},
                    settings={"mutations_sync": 2},
                )
        except DatabaseError as error:
            if refused := _refusal(table, error):
                raise refused from error
            raise

    def _try_twice(self, table: str, rows: Sequence[Row]) -> None:
        is_cached = table in self._contexts
        try:
            self._try(table, rows)
        except _Refused:
            if not is_cached:
                raise
            self._reconnect()  # the cached columns may be older than the table
            self._try(table, rows)

    def _try(self, table: str, rows: Sequence[Row]) -> None:
        client = self._connected()
        context = self._contexts.get(table)
        try:
            if context is None:
                columns = TABLES[table].columns
                try:
                    context = client.create_insert_context(table, column_names=columns)
                except ProgrammingError as error:  # compares names of columns, so the text holds nothing of a row
                    raise _Refused(
                        f"the table {table} differs: {error}; run `stepstream store migrate`", True
                    ) from error
                self._contexts[table] = context
            context.data = rows
            client.insert(context=context)
        except _CLIENT_ERRORS as error:
            self._contexts.pop(table, None)
            raise _Refused(f"does not fit the table {table} ({type(error).__name__})", False) from error
        except ClickHouseError as error:
            # The connection or the cached columns may be stale: the next attempt starts without them.
            self._reconnect()
            if refused := _refusal(table, error):
                raise refused from error
            raise

    def _reconnect(self) -> None:
        self._contexts.clear()
        if self._client is not None:
            self._client.close()
            self._client = None


class _Refused(Exception):
    """ClickHouse refuses rows for ever; the message gives the reason, without content of a row."""

    def __init__(self, reason: str, all_rows: bool) -> None:
        super().__init__(reason[:400])
        self.all_rows = all_rows


def _refusal(table: str, error: ClickHouseError) -> _Refused | None:
    """Return the refusal that an error of the server is; None: it may mend itself. Its text may hold values."""
    code = error.code if isinstance(error, DatabaseError) else None
    if code in _TABLE_REFUSALS:
        return _Refused(f"{_TABLE_REFUSALS[code]} ({code}) for the table {table}: run `stepstream store migrate`", True)
    return _Refused(f"{_ROW_REFUSALS[code]} ({code}) for the table {table}", False) if code in _ROW_REFUSALS else None
