"""State of one job for one partition: a RocksDB that also holds how far the input was folded into it.

One write batch carries the changes of a batch of records, the input offsets reached by them and the outputs that they
gave, so that after a kill at any moment the state, its position and what may not have been published yet agree. The
write-ahead log survives a killed process; a lost machine loses at most the newest batches, which are then behind the
committed offsets and are folded again from the input.
"""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from rocksdict import BlockBasedOptions, Options, Rdict, WriteBatch

from stepstream.core.process import Fatal

_OFFSETS = b"\x00offsets"
_OUTBOX = b"\x00outbox"
_WRITE_BUFFER_BYTES = 4 << 20
_FORMAT = 1


class Position(dict[str, int]):
    """Next offset to fold, by input topic."""


class PartitionState:
    """The store of one (job, partition). Keys of the job start with a byte above 0."""

    def __init__(self, folder: Path) -> None:
        """Opens or creates the store.

        Raises:
            Fatal: another process holds it.
        """
        self.folder = folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._db = _open(folder)
        self.identity, self.position, self.written_ms = self._read_position()

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        value: bytes | None = self._db.get(key)
        return value

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys (without the prefix) and values below a prefix, in the order of the keys."""
        entries: Any = self._db.items(from_key=prefix)
        for key, value in entries:
            if not key.startswith(prefix):
                return
            yield key[len(prefix) :], value

    def begin(self) -> "Changes":
        """An empty set of changes on top of the store."""
        return Changes(self)

    def write(self, changes: "Changes", position: Mapping[str, int], now_ms: int, outbox: bytes = b"") -> None:
        """Applies changes, positions and outputs at once; afterwards `changes` is spent."""
        batch = changes.batch
        for key, value in changes.overlay.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        self.position = Position(self.position | dict(position))
        self.written_ms = now_ms
        batch.put(_OFFSETS, self._encode_position())
        if outbox:
            batch.put(_OUTBOX, outbox)
        self._db.write(batch)

    def outbox(self) -> bytes | None:
        """Outputs of the last batch that may not have been published."""
        return self.get(_OUTBOX)

    def clear_outbox(self) -> None:
        """Tells that they have been."""
        self._db.delete(_OUTBOX)

    def reset(self, identity: str) -> None:
        """Forgets everything; `identity` names the log that the state will be folded from."""
        self._db.close()
        shutil.rmtree(self.folder)
        self._db = _open(self.folder)
        self.identity, self.position, self.written_ms = identity, Position(), 0
        self._db.put(_OFFSETS, self._encode_position())

    def close(self) -> None:
        """Flushes and releases the folder."""
        self._db.close()

    def _encode_position(self) -> bytes:
        return orjson.dumps(
            {"format": _FORMAT, "log": self.identity, "next": self.position, "written_ms": self.written_ms}
        )

    def _read_position(self) -> tuple[str, Position, int]:
        found = self.get(_OFFSETS)
        stored = orjson.loads(found) if found is not None else {}
        if stored.get("format") != _FORMAT:
            return "", Position(), 0
        return stored["log"], Position(stored["next"]), stored["written_ms"]


class Changes:
    """Changes that are not written yet, with the store below: reads see them."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state
        self.overlay: dict[bytes, bytes | None] = {}
        self.batch = WriteBatch(raw_mode=True)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key as changed so far, or None."""
        if key in self.overlay:
            return self.overlay[key]
        return self._state.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Sets a key."""
        self.overlay[key] = value

    def delete(self, key: bytes) -> None:
        """Removes a key."""
        self.overlay[key] = None

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Removes the stored keys in [begin, end); keys changed in this batch are not affected."""
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
                f"state folder {folder} is used by another process: stop it, or set STEPSTREAM_JOBS_STATE"
            ) from None
        raise
