"""Conversations by the id of their last response, for upstreams that keep none themselves, and items by theirs.

Pieces of conversations on disk, by names that only their callers know: they outlive the gateway.

One SQLite file for all gateway processes of a folder, bounded in bytes and in time. A piece is encrypted under a key
that is made from its name, and the name is not kept: whoever has the file alone reads nothing in it. What was written
survives the death of the process (kill -9), not a loss of power within seconds. A disk that fails costs what it would
have held, never a call; where it takes no file at all, pieces are kept in memory.
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
"""What a piece takes beside its own bytes, roughly."""
_TRIM_EVERY = 16
"""Old pieces are looked for whenever this part of the limit was written."""
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


class KeptPieces:
    """The file. Use it from one thread, and close it."""

    def __init__(
        self, folder: Path | None, limit_bytes: int, keep_s: float, now_s: Callable[[], float] = time.time
    ) -> None:
        """Opens the file of `folder`; both are made where they are missing.

        Args:
            folder: None: memory.
            limit_bytes: of all pieces together, as they are kept.
            keep_s: seconds after which a piece is forgotten.
            now_s: the time, in seconds since the Unix epoch.
        """
        self._limit, self._keep_s, self._now_s = limit_bytes, keep_s, now_s
        self._warned_at = -_WARN_EVERY_S
        self._untrimmed = limit_bytes
        try:
            self._db = _connected(":memory:") if folder is None else _opened(folder)
        except (OSError, sqlite3.Error) as error:
            self._tell(error)
            self._db = _connected(":memory:")

    def get(self, name: str) -> bytes | None:
        """A piece; None: there is none (any more)."""
        key, place = _key(name)
        try:
            row = self._db.execute(
                "SELECT piece FROM pieces WHERE name = ? AND at_s > ?", (place, self._now_s() - self._keep_s)
            ).fetchone()
        except sqlite3.Error as error:
            self._tell(error)
            return None
        if row is None:
            return None
        try:
            return AESGCM(key).decrypt(row[0][:_NONCE_BYTES], row[0][_NONCE_BYTES:], None)
        except InvalidTag:  # damaged
            return None

    def keep(self, name: str, piece: bytes) -> None:
        """Keeps a piece, in place of an earlier one of that name; the oldest ones may go for it."""
        key, place = _key(name)
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + AESGCM(key).encrypt(nonce, piece, None)
        size = len(sealed) + _ROW_BYTES
        try:
            self._db.execute(
                "INSERT OR REPLACE INTO pieces VALUES (?, ?, ?, ?)", (place, int(self._now_s()), size, sealed)
            )
            self._untrimmed += size
            if self._untrimmed > self._limit // _TRIM_EVERY:
                self._trim()
        except sqlite3.Error as error:
            self._tell(error)

    def forget(self, name: str) -> None:
        """Drops a piece."""
        try:
            self._db.execute("DELETE FROM pieces WHERE name = ?", (_key(name)[1],))
        except sqlite3.Error as error:
            self._tell(error)

    def close(self) -> None:
        """Lets the file go."""
        self._db.close()

    def _trim(self) -> None:
        """Drops what is too old, then the oldest beyond the limit, less what may come before the next time."""
        self._db.execute("DELETE FROM pieces WHERE at_s <= ?", (self._now_s() - self._keep_s,))
        self._db.execute(_OLDEST_BEYOND, (self._limit - self._limit // _TRIM_EVERY,))
        self._untrimmed = 0

    def _tell(self, error: Exception) -> None:
        now = time.monotonic()
        if now - self._warned_at >= _WARN_EVERY_S:
            self._warned_at = now
            log.error("conversations are not kept on disk: `previous_response_id` ends with this process: %s", error)


def _key(name: str) -> tuple[bytes, bytes]:
    """The key of a name's piece, and what stands for the name in the file."""
    said = name.encode("utf-8", "surrogatepass")
    return blake2b(said, digest_size=32, person=b"key").digest(), blake2b(said, digest_size=16, person=b"name").digest()


def _opened(folder: Path) -> sqlite3.Connection:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / FILE
    os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    try:
        return _connected(file)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):  # another process holds it, or the disk is full
            raise
        log.error("%s is damaged and is begun anew: %s", file, error)
        for name in (file, *(file.with_name(FILE + end) for end in ("-wal", "-shm"))):
            name.unlink(missing_ok=True)
        return _opened(folder)


def _connected(file: Path | str) -> sqlite3.Connection:
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


Erased = Callable[[str, str, int], bool]
"""Whether a tenant's person was erased after a time, in microseconds since the Unix epoch."""


class SavedResponses:
    """The newest of them, where they outlive the gateway; those of people who were erased are gone."""

    def __init__(self, kept: KeptPieces, erased: Erased = lambda tenant, user, at_us: False) -> None:
        self._kept = kept
        self._erased = erased

    def get(self, tenant: str, response_id: str) -> History | None:
        """The conversation up to and with a response; None: it is not known (any more)."""
        said = self._get(tenant, _name(tenant, response_id))
        return None if said is None else History(said["messages"], said["trajectory_id"], _persons(said))

    def item(self, tenant: str, item_id: str) -> dict[str, Any] | None:
        """An item of a response; None: it is not known (any more)."""
        said = self._get(tenant, _item_name(tenant, item_id))
        return None if said is None else said["item"]

    def keep(self, tenant: str, response_id: str, history: History, user: str | None, at_us: int) -> None:
        """Keeps a conversation; it may push out the oldest ones.

        Args:
            tenant: whose.
            response_id: its name.
            history: the conversation, with who took part in it before.
            user: the person who goes on with it; None: nobody that is known.
            at_us: when it happened, in microseconds since the Unix epoch.
        """
        said: dict[str, Any] = {"messages": history.messages, "trajectory_id": history.trajectory_id}
        if history.persons:
            said["persons"] = history.persons
        self._kept.keep(_name(tenant, response_id), orjson.dumps(said | {"user": user, "at_us": at_us}))

    def keep_items(self, tenant: str, items: Iterable[dict[str, Any]], user: str | None, at_us: int) -> None:
        """Keeps items of a response, each by its id; the rest as `keep`."""
        for item in items:
            said = {"item": item, "user": user, "at_us": at_us}
            self._kept.keep(_item_name(tenant, item["id"]), orjson.dumps(said))

    def _get(self, tenant: str, name: str) -> Any:
        piece = self._kept.get(name)
        said = None if piece is None else orjson.loads(piece)
        if said is not None and any(self._erased(tenant, user, at_us) for user, at_us in _persons(said).items()):
            self._kept.forget(name)
            return None
        return said


def _persons(said: dict[str, Any]) -> dict[str, int]:
    """Who took part in what was kept, and since when; earlier releases kept the last of them alone."""
    before: dict[str, int] = said.get("persons", {})
    return before if said["user"] is None else {said["user"]: said["at_us"]} | before


def _name(tenant: str, response_id: str) -> str:
    return f"{tenant}\0{response_id}"


def _item_name(tenant: str, item_id: str) -> str:
    return f"\0{tenant}\0{item_id}"  # no tenant's name begins so
