"""Store the state of one job for one partition in RocksDB, together with its input offsets.

One atomic write contains the changes of a batch of records and the input offsets after it. So state and position agree
after a kill at any moment. The write follows the transaction that published the batch's outputs and committed its
offsets: state is never ahead of the committed offsets. After a kill between the two, or on a lost machine, it is
behind them, and `recovery.py` folds the records again.
"""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from rocksdict import BlockBasedOptions, Checkpoint, Options, Rdict, WriteBatch

from stepstream.core.process import Fatal

_OFFSETS = b"\x00offsets"
_OUTBOX = b"\x00outbox"
"""Where earlier releases kept outputs before they published them."""
_WRITE_BUFFER_BYTES = 4 << 20
_FORMAT = 1


class Position(dict[str, int]):
    """Next offset to fold, by input topic."""


class PartitionState:
    """The state of one (job, partition). Keys of the job start with a byte above 0."""

    def __init__(self, folder: Path) -> None:
        """Open or create the state.

        Raises:
            Fatal: another process holds the folder.
        """
        self.folder = folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._db = _open(folder)
        self.identity, self.position, self.written_ms, self.ticks = self._read_position()

    @property
    def has_outbox(self) -> bool:
        """True if an earlier release wrote outputs here that it may not have published."""
        return self.get(_OUTBOX) is not None

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        value: bytes | None = self._db.get(key)
        return value

    def scan(self, prefix: bytes, begin: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys with a prefix (which is removed) and their values, in key order, from prefix + `begin` on."""
        entries: Any = self._db.items(from_key=prefix + begin)
        for key, value in entries:
            if not key.startswith(prefix):
                return
            yield key[len(prefix) :], value

    def entries(self) -> int:
        """Return an estimate of the number of keys, in microseconds; deleted ones count until they are compacted."""
        return self._db.property_int_value("rocksdb.estimate-num-keys") or 0

    def begin(self) -> "Changes":
        """Return an empty set of changes on top of the state."""
        return Changes(self)

    def write(self, changes: "Changes", position: Mapping[str, int], now_ms: int, ticks: int | None = None) -> None:
        """Write changes and input offsets atomically. Use `changes` only once.

        Args:
            changes: changed keys.
            position: next offset to fold, by input topic; other topics keep theirs.
            now_ms: time of the write.
            ticks: number of committed ticks; None: it stays.
        """
        batch = changes.batch
        for key, value in changes.overlay.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        self.position = Position(self.position | dict(position))
        self.written_ms = now_ms
        self.ticks = self.ticks if ticks is None else ticks
        batch.put(_OFFSETS, self._encode_position())
        self._db.write(batch)

    def reset(self, identity: str) -> None:
        """Delete everything; `identity` names the log from which the state is folded next."""
        if next(self.scan(b""), None) is not None:
            self._db.close()
            shutil.rmtree(self.folder)
            self._db = _open(self.folder)
        self.identity, self.position, self.written_ms, self.ticks = identity, Position(), 0, 0
        self._db.put(_OFFSETS, self._encode_position())

    def checkpoint(self, folder: Path) -> None:
        """Create `folder` with this state as it is now: hard links where the file system is the same; milliseconds."""
        Checkpoint(self._db).create_checkpoint(str(folder))

    def replace(self, folder: Path) -> None:
        """Replace everything by the state in `folder`, which is moved."""
        self._db.close()
        shutil.rmtree(self.folder)
        folder.rename(self.folder)
        self._db = _open(self.folder)
        self.identity, self.position, self.written_ms, self.ticks = self._read_position()

    def close(self) -> None:
        """Flush, and release the folder."""
        self._db.close()

    def _encode_position(self) -> bytes:
        entry = {"format": _FORMAT, "log": self.identity, "next": self.position, "written_ms": self.written_ms}
        return orjson.dumps(entry | {"ticks": self.ticks})

    def _read_position(self) -> tuple[str, Position, int, int]:
        encoded = self.get(_OFFSETS)
        stored = orjson.loads(encoded) if encoded is not None else {}
        if stored.get("format") != _FORMAT:
            return "", Position(), 0, 0
        return stored["log"], Position(stored["next"]), stored["written_ms"], stored.get("ticks", 0)


class Changes:
    """Unwritten changes on top of a state; reads see them."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state
        self.overlay: dict[bytes, bytes | None] = {}
        self.batch = WriteBatch(raw_mode=True)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key with the changes so far, or None."""
        if key in self.overlay:
            return self.overlay[key]
        return self._state.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        self.overlay[key] = value

    def delete(self, key: bytes) -> None:
        """Delete a key."""
        self.overlay[key] = None

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Delete the stored keys in [begin, end); keys changed in this batch are not affected."""
        self.batch.delete_range(begin, end)


def _open(folder: Path) -> Rdict:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_keep_log_file_num(1)
    options.set_max_open_files(64)
    table = BlockBasedOptions()
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    try:
        return Rdict(str(folder), options)
    except Exception as error:  # the binding raises bare exceptions
        if "lock" in str(error).lower():
            raise Fatal(
                f"another process uses state folder {folder}: stop it, or give this worker a number of its own "
                "(`stepstream run JOB --instance 2`; elsewhere STEPSTREAM_JOBS_INSTANCE)"
            ) from None
        raise
