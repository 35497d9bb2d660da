"""Own the data folder: one chDB engine, with a separate connection for each running query or session.

A connection costs a quarter of a millisecond, and its settings as much. It has temporary tables too, so a query
without a session cannot affect the next one. Everything here blocks; `run` calls it on threads.

Durability: ClickHouse acknowledges an insert after its part is written and renamed. The page cache survives the
process, so a killed store loses no acknowledged row. `fsync_after_insert` is off, ClickHouse's default: a power cut may
lose the last seconds, which a replay from Kafka restores.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import chdb

from stepstream.services.store.access import Limits, write_configuration
from stepstream.services.store.errors import UNKNOWN_DATABASE, StoreError
from stepstream.services.store.request import Request


class FolderInUseError(Exception):
    """Another process owns the data folder."""


@dataclass(frozen=True)
class Result:
    """A finished query: its output and ClickHouse's counts."""

    body: bytes
    read_rows: int = 0
    read_bytes: int = 0
    written_rows: int = 0
    written_bytes: int = 0
    result_rows: int = 0
    elapsed_s: float = 0.0


class Connection:
    """One chDB connection; used by one thread at a time."""

    def __init__(self, address: str) -> None:
        self._chdb = chdb.connect(address)

    def close(self) -> None:
        """Close the connection and drop its temporary tables."""
        self._chdb.close()

    def execute(
        self, sql: bytes | str, format: str = "TabSeparated", parameters: dict[str, str] | None = None
    ) -> Result:
        """Run a statement to its end.

        Raises:
            StoreError: an error of the engine.
        """
        text = sql if isinstance(sql, str) else sql.decode("utf-8", "surrogateescape")
        try:
            done = self._chdb.query(text, format, params=parameters or {})
        except Exception as error:
            raise StoreError.of(error) from None
        return Result(
            body=done.bytes(),
            read_rows=done.storage_rows_read(),
            read_bytes=done.storage_bytes_read(),
            written_rows=done.rows_written(),
            written_bytes=done.bytes_written(),
            result_rows=done.rows_read(),
            elapsed_s=done.elapsed(),
        )

    def stream(self, sql: bytes, format: str, parameters: dict[str, str]) -> Stream:
        """Start a SELECT whose blocks are fetched one by one."""
        try:
            return Stream(self._chdb.send_query(sql.decode("utf-8", "surrogateescape"), format, params=parameters))
        except Exception as error:
            raise StoreError.of(error) from None

    def insert(self, sql: bytes, format: str) -> Insert:
        """Start an INSERT that takes data in `format`."""
        try:
            return Insert(self._chdb.send_insert(sql.decode("utf-8", "surrogateescape"), format))
        except Exception as error:
            raise StoreError.of(error) from None


class Stream:
    """The blocks of a running SELECT, formatted."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def next(self) -> bytes | None:
        """Return the next block's bytes; None: the end."""
        try:
            chunk = self._result.fetch()
            return None if chunk is None else chunk.bytes()
        except Exception as error:
            raise StoreError.of(error) from None

    def close(self) -> None:
        """Stop the query if it still runs."""
        self._result.close()


class Insert:
    """A running INSERT; rows are stored for sure only after `finish`."""

    def __init__(self, inserter: Any) -> None:
        self._inserter = inserter

    def append(self, data: bytes) -> None:
        """Pass more data to the engine; pieces may end anywhere."""
        try:
            self._inserter.append(data)
        except Exception as error:
            raise self._reason_of(error) from None

    def finish(self) -> Result:
        """Write the remaining rows; on return all are stored."""
        try:
            done = self._inserter.finish()
        except Exception as error:
            raise StoreError.of(error) from None
        return Result(b"", written_rows=done.rows_written, written_bytes=done.bytes_written, elapsed_s=done.elapsed)

    def close(self) -> None:
        """Cancel the INSERT unless it was finished."""
        self._inserter.close()

    def _reason_of(self, error: Exception) -> StoreError:
        # chDB reports the reason of a failed append only at `finish`.
        try:
            self._inserter.finish()
        except Exception as reason:
            if "Code:" in str(reason):
                return StoreError.of(reason)
        return StoreError.of(error)


class Engine:
    """The open data folder."""

    def __init__(self, path: Path, database: str, limits: Limits) -> None:
        """Open or create the folder, and create its default database.

        Args:
            path: the folder.
            database: default database of connections.
            limits: limits of one statement.

        Raises:
            FolderInUseError: another process has it open.
        """
        path.mkdir(parents=True, exist_ok=True)
        self.database = database
        self._folder_lock = _lock_folder(path)
        self._address = f"{path}?config-file={write_configuration(path / 'access', limits)}"
        self._anchor = Connection(self._address)  # keeps the engine open between queries
        self._create_database()
        version, self.timezone = self._anchor.execute("SELECT version(), timezone()").body.decode().split()
        self.version = version

    def connect(self, *, reads_only: bool = False) -> Connection:
        """Return a fresh connection to the default database; creates a dropped database again.

        With `reads_only`, the engine permits no change but of settings and temporary tables.
        """
        connection = Connection(self._address)
        use = f"USE {identifier(self.database)}"
        try:
            connection.execute(use)
        except StoreError as error:
            if error.code != UNKNOWN_DATABASE:
                raise
            self._create_database()
            connection.execute(use)
        if reads_only:
            connection.execute("SET readonly = 2")
        return connection

    def _create_database(self) -> None:
        self._anchor.execute(f"CREATE DATABASE IF NOT EXISTS {identifier(self.database)} ENGINE = Atomic")

    def close(self) -> None:
        """Close the folder; every query must have ended."""
        self._anchor.close()
        self._folder_lock.close()


def _lock_folder(path: Path) -> IO[bytes]:
    """Lock the folder for this process; the lock ends with the process, also by a kill.

    chDB locks it too, but its error reaches Python without a reason.
    """
    lock = (path / "owner.lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise FolderInUseError(str(path)) from None
    return lock


def configure(connection: Connection, database: str | None, settings: Iterable[tuple[str, str]]) -> None:
    """Apply a request's database and settings to the connection.

    Raises:
        StoreError: the database or a setting is unknown.
    """
    if database:
        connection.execute(f"USE {identifier(database)}")
    if changes := ", ".join(f"{name} = {literal(value)}" for name, value in settings):
        connection.execute(f"SET {changes}")


@contextmanager
def configured(connection: Connection, request: Request) -> Iterator[None]:
    """Apply the request's database and settings to the connection, and undo them afterwards.

    Raises:
        StoreError: the database or a setting is unknown.
    """
    before = _restoring_statements(connection, request)
    try:
        configure(connection, request.database, request.settings.items())
        yield
    finally:
        for statement in before:
            connection.execute(statement)


def _restoring_statements(connection: Connection, request: Request) -> list[str]:
    """Return the statements that undo the changes of `request`."""
    if not request.database and not request.settings:
        return []
    values = ", ".join(f"toString(getSetting({literal(name)}))" for name in request.settings)
    row = connection.execute(f"SELECT [currentDatabase(), {values}]", "JSONCompactEachRow").body
    database, *before = json.loads(row)[0]
    changes = [f"{name} = {literal(value)}" for name, value in zip(request.settings, before, strict=True)]
    return [f"USE {identifier(database)}", *([f"SET {', '.join(changes)}"] if changes else [])]


def identifier(name: str) -> str:
    """Quote a name for SQL."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def literal(value: str) -> str:
    """Quote a string for SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
