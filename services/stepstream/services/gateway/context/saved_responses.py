"""Save responses and their items by id, for upstreams that keep no conversations themselves.

`SavedResponses` maps ids to conversations. `EncryptedStore` keeps them in one SQLite file for all gateway processes of
a folder, bounded in bytes and in time:

- Each value is encrypted under a key derived from its name, and the name is not stored. The file alone reveals nothing.
- A write survives the death of the process (kill -9), but not a power loss within seconds.
- After a disk error the value is lost; no call fails. If the file cannot be opened, values stay in memory.
"""

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from stepstream.services.gateway.protocols.base import History

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
_OLDEST_BEYOND = """
WITH aged AS (SELECT rowid AS row, sum(size) OVER (ORDER BY at_s DESC, rowid DESC) AS newer FROM pieces)
DELETE FROM pieces WHERE rowid IN (SELECT row FROM aged WHERE newer > ?)
"""

IsErased = Callable[[str, str, int], bool]
"""True if a tenant's person was erased at or after a time, in microseconds since the Unix epoch."""


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
        self._db.execute(_OLDEST_BEYOND, (self._limit - self._limit // _TRIM_EVERY,))
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


class SavedResponses:
    """Saved conversations and items. Those of erased persons are never returned."""

    def __init__(self, store: EncryptedStore, is_erased: IsErased = lambda tenant, user, at_us: False) -> None:
        self._store = store
        self._is_erased = is_erased

    def get(self, tenant: str, response_id: str) -> History | None:
        """Return the conversation up to and including a response; None: unknown or expired."""
        saved = self._load(tenant, _response_name(tenant, response_id))
        return None if saved is None else History(saved["messages"], saved["trajectory_id"], _participants(saved))

    def item(self, tenant: str, item_id: str) -> dict[str, Any] | None:
        """Return an item of a response; None: unknown or expired."""
        saved = self._load(tenant, _item_name(tenant, item_id))
        return None if saved is None else saved["item"]

    def save(self, tenant: str, response_id: str, history: History, user: str | None, at_us: int) -> None:
        """Save a conversation; the oldest ones may be deleted for it.

        Args:
            tenant: tenant of the conversation.
            response_id: id of its last response.
            history: the conversation, with its earlier participants.
            user: the person who made this call; None: unknown.
            at_us: time of the call, in microseconds since the Unix epoch.
        """
        saved: dict[str, Any] = {"messages": history.messages, "trajectory_id": history.trajectory_id}
        if history.participants:
            saved["persons"] = history.participants
        self._store.put(_response_name(tenant, response_id), orjson.dumps(saved | {"user": user, "at_us": at_us}))

    def save_items(self, tenant: str, items: Iterable[dict[str, Any]], user: str | None, at_us: int) -> None:
        """Save items of a response, each by its id; the other arguments as for `save`."""
        for item in items:
            saved = {"item": item, "user": user, "at_us": at_us}
            self._store.put(_item_name(tenant, item["id"]), orjson.dumps(saved))

    def _load(self, tenant: str, name: str) -> Any:
        value = self._store.get(name)
        saved = None if value is None else orjson.loads(value)
        if saved is not None and any(
            self._is_erased(tenant, user, at_us) for user, at_us in _participants(saved).items()
        ):
            self._store.delete(name)
            return None
        return saved


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


def _participants(saved: dict[str, Any]) -> dict[str, int]:
    """Return each person with the time of the first call; earlier releases stored only the last person."""
    before: dict[str, int] = saved.get("persons", {})
    return before if saved["user"] is None else {saved["user"]: saved["at_us"]} | before


def _response_name(tenant: str, response_id: str) -> str:
    return f"{tenant}\0{response_id}"


def _item_name(tenant: str, item_id: str) -> str:
    return f"\0{tenant}\0{item_id}"  # no tenant's name begins with a null
