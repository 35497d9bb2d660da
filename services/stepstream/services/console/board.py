"""Query the store for the page's data, and cache each answer for all browsers."""

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError

from stepstream.config import Settings
from stepstream.jobs.clickhouse.connection import StoreUnavailableError, connect
from stepstream.services.console.queries import MODELS, QUERIES

log = logging.getLogger(__name__)

Row = dict[str, Any]
Snapshot = dict[str, Any]

# Timeout of one query in seconds; after it the page shows that the store is unreachable.
_TIMEOUT_S = 10.0
_UNKNOWN_TABLE, _UNKNOWN_DATABASE = 60, 81


class Unavailable(Exception):
    """The store cannot answer now; the page shows the message."""


class Board:
    """Caches the store's answers. Thread-safe; blocks while the store answers."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._answers: dict[tuple[str, str], tuple[float, list[Row]]] = {}
        self._reachable = True

    def snapshot(self, model: str | None) -> Snapshot:
        """Return all data of one model; None: the one active last.

        Raises:
            Unavailable: the store is unreachable, or has no tables yet.
        """
        with self._lock:
            try:
                snapshot = self._query_all(model)
            except StoreUnavailableError as error:
                raise self._unavailable(str(error)) from None
            except (ClickHouseError, OSError) as error:
                code = error.code if isinstance(error, DatabaseError) else None
                if code in {_UNKNOWN_TABLE, _UNKNOWN_DATABASE}:
                    raise self._unavailable("it has no tables yet: run `stepstream store migrate`") from None
                first = (str(error).splitlines() or [type(error).__name__])[0]
                raise self._unavailable(f"{self._settings.clickhouse.url}: {first[:200]}") from None
            if not self._reachable:
                log.info("the store answers again")
                self._reachable = True
            return snapshot

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._disconnect()

    def _query_all(self, model: str | None) -> Snapshot:
        client = self._connect()
        models = [row["model"] for row in self._query(client, "models", MODELS, 3.0, "")]
        if model is None or model not in models:
            model = models[0] if models else ""
        answers = {name: self._query(client, name, query.sql, query.fresh_s, model) for name, query in QUERIES.items()}
        return {"model": model, "models": models, **answers}

    def _query(self, client: Client, name: str, sql: str, fresh_s: float, model: str) -> list[Row]:
        now = self._clock()
        queried_at, rows = self._answers.get((name, model), (-math.inf, []))
        if now - queried_at < fresh_s:
            return rows
        rows = [_without_nan(row) for row in client.query(sql, parameters={"model": model}).named_results()]
        self._answers = {key: answer for key, answer in self._answers.items() if now - answer[0] < 60}
        self._answers[name, model] = (now, rows)
        return rows

    def _connect(self) -> Client:
        if self._client is None:
            self._client = connect(
                self._settings, database=self._settings.clickhouse.database, timeout_s=_TIMEOUT_S, reads_only=True
            )
        return self._client

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _unavailable(self, reason: str) -> Unavailable:
        self._disconnect()
        self._answers.clear()
        if self._reachable:
            log.warning("the store is unavailable: %s; the page shows this until it answers", reason)
            self._reachable = False
        return Unavailable(reason)


def _without_nan(row: Row) -> Row:
    """Replace NaN and infinity by None, because JSON has neither."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }
