"""Keep RocksDB open while the workers of `owner_model` restart: to open it takes longer than all of their work.

A process that ends leaves in its folder what it wrote, and the next one finds it. So a database may stay open in
between. Its writes, reads, scans and checkpoints are RocksDB's. Snapshots that are restored are opened as ever.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Checkpoint, Rdict

from stepstream.jobs.runtime import state

_MOST_USES = 40
"""Folders that one database serves, one after the other. The keys that were deleted in between make it slower."""


class _Database:
    """An open database with the methods of `Rdict` that a state uses. `close` keeps it open."""

    def __init__(self, db: Rdict) -> None:
        self.db = db
        self.uses = 0
        self.is_open = False
        self.get, self.put, self.write, self.items = db.get, db.put, db.write, db.items
        self.property_int_value = db.property_int_value

    def close(self) -> None:
        self.is_open = False


class OpenDatabases:
    """The databases of one worker's folders after the other. Use from one thread."""

    def __init__(self, folder: Path) -> None:
        """Keep the databases' files in `folder`."""
        self._folder = folder
        self._open_anew = state._open
        self._opened = 0
        self._by_folder: dict[Path, _Database] = {}
        self._free: list[_Database] = []

    def open(self, folder: Path) -> Any:
        """Open or create the database of a state's folder, as `state._open`."""
        if (folder / "CURRENT").exists():  # restored from a snapshot
            return self._open_anew(folder)
        database = self._by_folder.get(folder)
        if database is not None and database.is_open:
            raise RuntimeError(f"lock of {folder} is held")
        if database is None or not folder.exists():
            folder.mkdir()
            self._release(folder)
            database = self._by_folder[folder] = self._empty()
        database.is_open = True
        return database

    def checkpoint(self, database: Any) -> Checkpoint:
        """Return the checkpoints of a database."""
        if not isinstance(database, _Database):
            return Checkpoint(database)
        database.uses = _MOST_USES  # from now on, its files hold deleted keys
        return Checkpoint(database.db)

    def clear(self) -> None:
        """Forget the folders."""
        for folder in list(self._by_folder):
            self._release(folder)

    def close(self) -> None:
        """Close the databases."""
        self.clear()
        for database in self._free:
            database.db.close()

    def _release(self, folder: Path) -> None:
        database = self._by_folder.pop(folder, None)
        if database is None:
            return
        if database.uses < _MOST_USES:
            self._free.append(database)
        else:
            database.db.close()

    def _empty(self) -> _Database:
        if self._free:
            database = self._free.pop()
            database.db.delete_range(b"", b"\xff")
        else:
            self._opened += 1
            database = _Database(self._open_anew(self._folder / str(self._opened)))
        database.uses += 1
        return database


@contextmanager
def open_databases(folder: Path) -> Iterator[OpenDatabases]:
    """Let all states use databases that stay open."""
    databases = OpenDatabases(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "_open", databases.open)
        patch.setattr(state, "Checkpoint", databases.checkpoint)
        yield databases
    databases.close()
