"""Store small values by key in a file of fixed size, shared by all gateway processes of a folder.

The digest of a key chooses a bucket of slots. In a full bucket the slot with the oldest write is overwritten.

A write is a few system calls, each of about a microsecond: a read, a write, and for `update` a lock of the bucket,
which the death of a process releases. It survives the death of the process (kill -9), but not a power loss within the
seconds before the operating system flushes it. After a disk error no value is known; no call fails.
"""

import fcntl
import logging
import os
import struct
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

log = logging.getLogger(__name__)

_WAYS = 8
_TAG_BYTES = 8
_NO_TAG, _FIRST_TAG = bytes(_TAG_BYTES), b"\x01" + bytes(_TAG_BYTES - 1)
_TIME = struct.Struct("<I")
_WARN_EVERY_S = 60.0


class SlotFile:
    """The open file. Close it. Without a usable folder it stores nothing."""

    def __init__(self, folder: Path | None, name: str, value_bytes: int, slots: int) -> None:
        """Open the file of `folder`, creating both if missing.

        Args:
            folder: None: store nothing.
            name: of the file.
            value_bytes: size of each value.
            slots: number of values; the file takes 12 bytes more for each from the first value on, and the file system
                allocates them as they are used.
        """
        self._name = name
        self._value_bytes = value_bytes
        self._slot_bytes = value_bytes + _TAG_BYTES + _TIME.size
        self._bucket_bytes = _WAYS * self._slot_bytes
        self._times = struct.Struct("<" + f"{value_bytes + _TAG_BYTES}xI" * _WAYS)
        self._buckets = slots // _WAYS
        self._fd = -1
        self._has_slots = False
        self._warned_at = -_WARN_EVERY_S
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._fd = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                self._warn(error)

    def is_empty(self) -> bool:
        """Return True if no process has stored a value."""
        if not self._has_slots and self._fd >= 0:
            try:
                self._has_slots = os.lseek(self._fd, 0, os.SEEK_END) > 0  # a third of the cost of `os.fstat`
            except OSError as error:
                self._warn(error)
        return not self._has_slots

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None: unknown."""
        if self._fd < 0:
            return None
        tag, start = self._place(key)
        try:
            bucket = os.pread(self._fd, self._bucket_bytes, start)
            return self._find(bucket, tag)[1] if tag in bucket else None
        except OSError as error:
            self._warn(error)
            return None

    def put(self, key: bytes, value: bytes, contested: bytes | None = None) -> None:
        """Store a value. Of two processes that write other keys to one bucket at once, one may lose its value.

        Args:
            key: the key.
            value: its value.
            contested: stored instead if the key has another value; None: the new value replaces it.
        """
        if self._fd >= 0:
            tag, start = self._place(key)
            try:
                self._add_slots()
                offset, known = self._find(os.pread(self._fd, self._bucket_bytes, start), tag)
                stored = value if contested is None or known in (None, value) else contested
                self._write(start + offset, tag, known, stored)
            except OSError as error:
                self._warn(error)

    def update(self, key: bytes, change: Callable[[bytes | None], bytes]) -> None:
        """Replace a value by `change` of it (None: unknown), while no other process can change it."""
        if self._fd < 0:
            change(None)
            return
        tag, start = self._place(key)
        changed = None
        try:
            self._add_slots()
            fcntl.lockf(self._fd, fcntl.LOCK_EX, self._bucket_bytes, start)
            try:
                offset, value = self._find(os.pread(self._fd, self._bucket_bytes, start), tag)
                changed = change(value)
                self._write(start + offset, tag, value, changed)
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN, self._bucket_bytes, start)
        except OSError as error:
            self._warn(error)
            if changed is None:
                change(None)

    def close(self) -> None:
        """Close the file; later writes are ignored."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _add_slots(self) -> None:
        if not self._has_slots:
            os.ftruncate(self._fd, self._buckets * self._bucket_bytes)
            self._has_slots = True

    def _write(self, offset: int, tag: bytes, known: bytes | None, value: bytes) -> None:
        if value != known:
            os.pwrite(self._fd, tag + value + _TIME.pack(int(time.time())), offset)

    def _place(self, key: bytes) -> tuple[bytes, int]:
        """Return a key's tag and the offset of its bucket; a tag of 0 is an empty slot."""
        digest = blake2b(key, digest_size=16).digest()
        tag = digest[_TAG_BYTES:]
        bucket = int.from_bytes(digest, "little") % self._buckets
        return tag if tag != _NO_TAG else _FIRST_TAG, bucket * self._bucket_bytes

    def _find(self, bucket: bytes, tag: bytes) -> tuple[int, bytes | None]:
        """Return the offset and value of a tag's slot; without one, the offset of the slot to overwrite and None."""
        offset = bucket.find(tag)
        while offset >= 0:
            start = offset + _TAG_BYTES
            if offset % self._slot_bytes == 0:
                return offset, bucket[start : start + self._value_bytes]
            offset = bucket.find(tag, offset + 1)  # a value contained the tag
        written_s = self._times.unpack(bucket.ljust(self._bucket_bytes, b"\0"))
        return written_s.index(min(written_s)) * self._slot_bytes, None

    def _warn(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._warned_at >= _WARN_EVERY_S:
            self._warned_at = now
            log.error(
                "%s is not stored on disk: %s; after a restart the gateway has forgotten it; repair the spool folder",
                self._name,
                error,
            )
