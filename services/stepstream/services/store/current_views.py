"""Find which views of a database have the definitions of this release."""

import json
import threading

from stepstream.jobs.clickhouse.create_views import comment_of
from stepstream.jobs.clickhouse.views import views
from stepstream.services.store.engine import Connection, literal


class CurrentViews:
    """Names of the views whose comments have the digests of this release's definitions. Thread-safe; blocks."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._comments = {name: comment_of(view) for name, view in views().items()}
        self._names: dict[str, frozenset[str]] = {}

    def of(self, database: str) -> frozenset[str]:
        """Return the names of those of a database.

        Raises:
            StoreError: the engine cannot read its list of tables.
        """
        with self._lock:
            if (names := self._names.get(database)) is None:
                names = self._names[database] = self._read(database)
            return names

    def clear(self) -> None:
        """Read them again: a statement may have changed a view."""
        with self._lock:
            self._names.clear()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _read(self, database: str) -> frozenset[str]:
        found = self._connection.execute(
            f"SELECT name, comment FROM system.tables WHERE database = {literal(database)} AND engine = 'View'",
            "JSONCompactEachRow",
        )
        rows = (json.loads(line) for line in found.body.splitlines())
        return frozenset(name for name, comment in rows if self._comments.get(name) == comment)
