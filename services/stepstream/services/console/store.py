"""Query the store for the console: a few connections, and answers that all browsers share for a moment."""

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError

from stepstream.config import Settings
from stepstream.jobs.clickhouse.connection import StoreUnavailableError, connect

log = logging.getLogger(__name__)

Row = dict[str, Any]

# Timeout of one query in seconds; after it the page shows that the store is unreachable.
_TIMEOUT_S = 10.0
_CONNECTIONS = 4
_KEPT_ANSWERS = 256
_UNKNOWN_TABLE, _UNKNOWN_DATABASE = 60, 81
_TOO_MANY_QUERIES, _ACCESS_DENIED, _AUTHENTICATION_FAILED = 202, 497, 516
_OUTAGES = {_UNKNOWN_TABLE, _UNKNOWN_DATABASE, _TOO_MANY_QUERIES, _ACCESS_DENIED, _AUTHENTICATION_FAILED}
"""Codes of ClickHouse's errors that are no fault of the statement."""


class Unavailable(Exception):
    """The store cannot answer now; the page shows the message."""


class QueryFailed(Exception):
    """The store answers, but not this query; the page shows the message."""


class Store:
    """Caches the store's answers. Thread-safe; blocks while the store answers."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._slots = threading.BoundedSemaphore(_CONNECTIONS)
        self._idle: SimpleQueue[Client] = SimpleQueue()
        self._answers: OrderedDict[tuple[str, str], tuple[float, list[Row]]] = OrderedDict()
        self._lock = threading.Lock()
        self._reachable = True

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None, *, fresh_s: float = 1.0) -> list[Row]:
        """Return the rows of a query as dictionaries, without NaN and infinity.

        Args:
            sql: one SELECT with a LIMIT or another bound of its rows.
            parameters: values of its placeholders, as `{limit:UInt32}`.
            fresh_s: seconds for which the same query is answered from memory.

        Raises:
            Unavailable: the store is unreachable, or has no tables yet.
            QueryFailed: it rejects the query, or cannot finish it.
        """
        key = (sql, repr(sorted((parameters or {}).items())))
        with self._lock:
            asked_at, rows = self._answers.get(key, (-math.inf, []))
            if self._clock() - asked_at < fresh_s:
                return rows
        asked_at = self._clock()
        rows = self._ask(sql, dict(parameters or {}))
        with self._lock:
            self._answers[key] = (asked_at, rows)
            self._answers.move_to_end(key)
            while len(self._answers) > _KEPT_ANSWERS:
                self._answers.popitem(last=False)
        return rows

    def close(self) -> None:
        """Close the idle connections."""
        with suppress(Empty):
            while True:
                self._idle.get_nowait().close()

    def _ask(self, sql: str, parameters: dict[str, Any]) -> list[Row]:
        with self._slots:
            try:
                client = self._connection()
                try:
                    rows = [_without_nan(row) for row in client.query(sql, parameters=parameters).named_results()]
                except BaseException:
                    client.close()
                    raise
                self._idle.put(client)
            except StoreUnavailableError as error:
                raise self._unavailable(str(error)) from None
            except (ClickHouseError, OSError) as error:
                if _is_of_statement(error):
                    log.warning("the store rejects a query of the console: %s", _first_line(error))
                    raise QueryFailed(f"The store rejects the query: {_first_line(error)}") from None
                raise self._unavailable(self._reason(error)) from None
        if not self._reachable:
            log.info("the store answers again")
            self._reachable = True
        return rows

    def _connection(self) -> Client:
        with suppress(Empty):
            return self._idle.get_nowait()
        return connect(
            self._settings, database=self._settings.clickhouse.database, timeout_s=_TIMEOUT_S, reads_only=True
        )

    def _reason(self, error: Exception) -> str:
        if isinstance(error, DatabaseError) and error.code in {_UNKNOWN_TABLE, _UNKNOWN_DATABASE}:
            return "it has no tables yet: run `stepstream store migrate`"
        return f"{self._settings.clickhouse.url}: {_first_line(error)}"

    def _unavailable(self, reason: str) -> Unavailable:
        self.close()
        with self._lock:
            self._answers.clear()
        if self._reachable:
            log.warning("the store is unavailable: %s; the console shows this until it answers", reason)
            self._reachable = False
        return Unavailable(f"Store unreachable: {reason}")


def _is_of_statement(error: Exception) -> bool:
    """Return True if ClickHouse itself answered with an error of this statement; an unreachable server has no code."""
    return isinstance(error, DatabaseError) and error.code is not None and error.code not in _OUTAGES


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _without_nan(row: Row) -> Row:
    """Replace NaN and infinity by None, because JSON has neither."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }
