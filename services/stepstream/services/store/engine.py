"""The owner of the data folder: one chDB engine, a connection of its own for each query or session.

A connection costs a quarter of a millisecond and holds settings, the current database and temporary tables, so a
query without a session cannot leak anything into the next one. Everything here blocks; `app` calls it in threads.

Durability: ClickHouse acknowledges an insert after its part is written and renamed; the page cache survives the
process, so a killed store loses no acknowledged row. `fsync_after_insert` is off, as in ClickHouse's own default:
a power cut may lose the last seconds, which replay from the log brings back.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import chdb

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

    def __init__(self, path: Path) -> None:
        self._chdb = chdb.connect(str(path))

    def close(self) -> None:
        """Ends it, with its temporary tables."""
        self._chdb.close()

    def execute(
        self, sql: bytes | str, format: str = "TabSeparated", parameters: dict[str, str] | None = None
    ) -> Result:
        """Runs a statement to its end.

        Raises:
            StoreError: whatever the engine says.
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
        """Starts a SELECT whose blocks are fetched one by one."""
        try:
            return Stream(self._chdb.send_query(sql.decode("utf-8", "surrogateescape"), format, params=parameters))
        except Exception as error:
            raise StoreError.of(error) from None

    def insert(self, sql: bytes, format: str) -> Insert:
        """Starts an INSERT that is fed with data in `format`."""
        try:
            return Insert(self._chdb.send_insert(sql.decode("utf-8", "surrogateescape"), format))
        except Exception as error:
            raise StoreError.of(error) from None


class Stream:
    """The blocks of a running SELECT, formatted."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def next(self) -> bytes | None:
        """The next block's bytes; None: that was all."""
        try:
            chunk = self._result.fetch()
            return None if chunk is None else chunk.bytes()
        except Exception as error:
            raise StoreError.of(error) from None

    def close(self) -> None:
        """Stops the query if it still runs."""
        self._result.close()


class Insert:
    """A running INSERT: nothing is acknowledged, and mostly nothing written, before `finish`."""

    def __init__(self, inserter: Any) -> None:
        self._inserter = inserter

    def append(self, data: bytes) -> None:
        """Gives the engine more of the data; pieces may end anywhere."""
        try:
            self._inserter.append(data)
        except Exception as error:
            raise self._explained(error) from None

    def finish(self) -> Result:
        """Writes what is left; after this the rows are stored."""
        try:
            done = self._inserter.finish()
        except Exception as error:
            raise StoreError.of(error) from None
        return Result(b"", written_rows=done.rows_written, written_bytes=done.bytes_written, elapsed_s=done.elapsed)

    def close(self) -> None:
        """Drops it where it was not finished."""
        self._inserter.close()

    def _explained(self, error: Exception) -> StoreError:
        # chDB tells the reason of a failed append only at the end.
        try:
            self._inserter.finish()
        except Exception as reason:
            if "Code:" in str(reason):
                return StoreError.of(reason)
        return StoreError.of(error)


class Engine:
    """The open data folder."""

    def __init__(self, path: Path, database: str) -> None:
        """Opens or creates the folder and, in it, the database that requests without one use.

        Raises:
            FolderInUseError: another process has it open.
        """
        path.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.database = database
        self._owned = _own(path)
        self._anchor = Connection(path)  # keeps the engine open between queries
        self._make_database()
        version, self.timezone = self._anchor.execute("SELECT version(), timezone()").body.decode().split()
        self.version = version

    def connect(self) -> Connection:
        """A connection with nothing set, in the default database; one that was dropped is there again, empty."""
        connection = Connection(self._path)
        use = f"USE {identifier(self.database)}"
        try:
            connection.execute(use)
        except StoreError as error:
            if error.code != UNKNOWN_DATABASE:
                raise
            self._make_database()
            connection.execute(use)
        return connection

    def _make_database(self) -> None:
        self._anchor.execute(f"CREATE DATABASE IF NOT EXISTS {identifier(self.database)} ENGINE = Atomic")

    def close(self) -> None:
        """Closes the folder; every query must have ended."""
        self._anchor.close()
        self._owned.close()


def _own(path: Path) -> IO[bytes]:
    """Takes the folder for this process; ends with the process, however that ends.

    chDB locks it as well, but its refusal reaches Python without its reason.
    """
    lock = (path / "owner.lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise FolderInUseError(str(path)) from None
    return lock


@contextmanager
def prepared(connection: Connection, request: Request, *, restore: bool) -> Iterator[Connection]:
    """Gives the connection the request's database and settings, and takes them back where it lives on (`restore`).

    Raises:
        StoreError: an unknown database or setting.
    """
    before = _state(connection, request) if restore else []
    try:
        if request.database:
            connection.execute(f"USE {identifier(request.database)}")
        if request.settings:
            changes = ", ".join(f"{name} = {literal(value)}" for name, value in request.settings.items())
            connection.execute(f"SET {changes}")
        yield connection
    finally:
        for statement in before:
            connection.execute(statement)


def _state(connection: Connection, request: Request) -> list[str]:
    """Statements that put back what `request` is going to change."""
    if not request.database and not request.settings:
        return []
    values = ", ".join(f"toString(getSetting({literal(name)}))" for name in request.settings)
    row = connection.execute(f"SELECT [currentDatabase(), {values}]", "JSONCompactEachRow").body
    database, *before = json.loads(row)[0]
    changes = [f"{name} = {literal(value)}" for name, value in zip(request.settings, before, strict=True)]
    return [f"USE {identifier(database)}", *([f"SET {', '.join(changes)}"] if changes else [])]


def identifier(name: str) -> str:
    """A name, quoted for SQL."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def literal(value: str) -> str:
    """A string, quoted for SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
