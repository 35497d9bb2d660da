"""Keep values by name in one SQLite file for all gateway processes of a folder, bounded in bytes and in time.

- Each value is encrypted under a key derived from its name, and the name is not stored. The file alone reveals nothing.
- A write survives the death of the process (kill -9), but not a power loss within seconds.
- After a disk error the value is lost; no call fails. If the file cannot be opened, values stay in memory.
"""

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

log = logging.getLogger(__name__)

FILE = "conversations-1.sqlite"
_NONCE_BYTES = 12
_ROW_BYTES = 100
"""Approximate overhead of a row."""
_TRIM_EVERY = 16
"""Old values are deleted each time this fraction of the limit was written."""
_WARN_EVERY_S = 60.0
_TABLE = """
CREATE TABLE IF NOT EXISTS pieces (
    name BLOB PRIMARY KEY, at_s INTEGER NOT NULL, size INTEGER NOT NULL, piece BLOB NOT NULL
)
"""
_BY_AGE = "CREATE INDEX IF NOT EXISTS by_age ON pieces (at_s, size)"
_OLDEST = "SELECT name, size FROM pieces ORDER BY at_s, rowid"


class EncryptedStore:
    """The SQLite file. Use it from one thread, and close it."""

    def __init__(
        self, folder: Path | None, limit_bytes: int, keep_s: float, now_s: Callable[[], float] = time.time
    ) -> None:
        """Open the file of `folder`, creating both if missing.

        Args:
            folder: None: memory.
            limit_bytes: size of all encrypted values together.
            keep_s: seconds after which a value expires.
            now_s: returns the time in seconds since the Unix epoch.
        """
        self._limit, self._keep_s, self._now_s = limit_bytes, keep_s, now_s
        self._warned_at = -_WARN_EVERY_S
        self._untrimmed = limit_bytes
        try:
            self._db = _connect(":memory:") if folder is None else _open(folder)
        except (OSError, sqlite3.Error) as error:
            self._warn(error)
            self._db = _connect(":memory:")

    def get(self, name: str) -> bytes | None:
        """Return a value; None: unknown, expired or damaged."""
        key, row_name = _derived(name)
        try:
            row = self._db.execute(
                "SELECT piece FROM pieces WHERE name = ? AND at_s > ?", (row_name, self._now_s() - self._keep_s)
            ).fetchone()
        except sqlite3.Error as error:
            self._warn(error)
            return None
        if row is None:
            return None
        try:
            return AESGCM(key).decrypt(row[0][:_NONCE_BYTES], row[0][_NONCE_BYTES:], None)
        except InvalidTag:
            return None

    def put(self, name: str, value: bytes) -> None:
        """Store a value, replacing an earlier one of that name; the oldest values may be deleted for it."""
        key, row_name = _derived(name)
        nonce = os.urandom(_NONCE_BYTES)
        encrypted = nonce + AESGCM(key).encrypt(nonce, value, None)
        size = len(encrypted) + _ROW_BYTES
        try:
            self._db.execute(
                "INSERT OR REPLACE INTO pieces VALUES (?, ?, ?, ?)", (row_name, int(self._now_s()), size, encrypted)
            )
            self._untrimmed += size
            if self._untrimmed > self._limit // _TRIM_EVERY:
                self._trim()
        except sqlite3.Error as error:
            self._warn(error)

    def refresh(self, names: Sequence[str]) -> bool:
        """Make values as young as new ones; return False if one is missing."""
        now_s = int(self._now_s())
        try:
            updated = self._db.executemany(
                "UPDATE pieces SET at_s = ? WHERE name = ?", [(now_s, _derived(name)[1]) for name in names]
            )
        except sqlite3.Error as error:
            self._warn(error)
            return False
        return updated.rowcount == len(names)

    def delete(self, name: str) -> None:
        """Delete a value."""
        try:
            self._db.execute("DELETE FROM pieces WHERE name = ?", (_derived(name)[1],))
        except sqlite3.Error as error:
            self._warn(error)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _trim(self) -> None:
        """Delete expired values, then the oldest beyond the limit, leaving room until the next trim."""
        self._db.execute("DELETE FROM pieces WHERE at_s <= ?", (self._now_s() - self._keep_s,))
        (size,) = self._db.execute("SELECT total(size) FROM pieces").fetchone()
        excess = size - (self._limit - self._limit // _TRIM_EVERY)
        oldest = []
        for name, freed in self._db.execute(_OLDEST) if excess > 0 else ():
            if excess <= 0:
                break
            oldest.append((name,))
            excess -= freed
        self._db.executemany("DELETE FROM pieces WHERE name = ?", oldest)
        self._untrimmed = 0

    def _warn(self, error: Exception) -> None:
        now = time.monotonic()
        if now - self._warned_at >= _WARN_EVERY_S:
            self._warned_at = now
            log.error(
                "conversations are not stored on disk: %s; `previous_response_id` fails after a restart; repair the "
                "spool folder",
                error,
            )


def _derived(name: str) -> tuple[bytes, bytes]:
    """Return the encryption key of a name's value, and the digest that replaces the name in the file."""
    encoded = name.encode("utf-8", "surrogatepass")
    key = blake2b(encoded, digest_size=32, person=b"key").digest()
    return key, blake2b(encoded, digest_size=16, person=b"name").digest()


def _open(folder: Path) -> sqlite3.Connection:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / FILE
    os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    try:
        return _connect(file)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):  # another process holds it, or the disk is full
            raise
        log.error("%s is damaged: %s; an empty file replaces it, saved conversations are lost", file, error)
        for name in (file, *(file.with_name(FILE + end) for end in ("-wal", "-shm"))):
            name.unlink(missing_ok=True)
        return _open(folder)


def _connect(file: Path | str) -> sqlite3.Connection:
    db = sqlite3.connect(file, timeout=0.1, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")  # no call waits for the disk
        db.execute(_TABLE)
        db.execute(_BY_AGE)
    except sqlite3.Error:
        db.close()
        raise
    return db
