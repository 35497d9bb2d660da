"""Store the next step index of every named trajectory, so that counting continues after eviction or restart.

The file has slots of 16 bytes and is shared by all gateway processes of a folder. The digest of a trajectory's name
chooses a bucket of slots. In a full bucket the trajectory with the oldest last call is overwritten.

A write is one system call of about a microsecond. It survives the death of the process (kill -9), but not a power loss
within the seconds before the operating system flushes it. After a disk error no index is known; no call fails.
"""

import logging
import os
import struct
import time
from hashlib import blake2b
from pathlib import Path

log = logging.getLogger(__name__)

FILE = "next-indices-1"
SLOTS = 1 << 20
"""Number of trajectories: 16 MiB of disk, allocated as it is used."""
_WAYS = 8
_SLOT = struct.Struct("<QII")
_BUCKET_BYTES = _WAYS * _SLOT.size
_BUCKETS = SLOTS // _WAYS
_LARGEST = 2**31
_WARN_EVERY_S = 60.0


class StepIndex:
    """One trajectory's entry; see `NextIndex` of `tree.py`."""

    __slots__ = ("_file", "_offset", "_tag", "value")

    def __init__(self, file: "StepIndexFile", offset: int, tag: int, value: int | None) -> None:
        self._file = file
        self._offset = offset
        self._tag = tag
        self.value = value

    def note(self, value: int) -> None:
        """Write the index of the next step, if it changed."""
        if value != self.value:
            self.value = value
            self._file.write(self._offset, self._tag, value)


class StepIndexFile:
    """The open file. Close it. Without a usable folder it stores nothing."""

    def __init__(self, folder: Path | None = None) -> None:
        """Open the file of `folder`, creating both if missing."""
        self._fd = -1
        self._warned_at = -_WARN_EVERY_S
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._fd = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                os.ftruncate(self._fd, SLOTS * _SLOT.size)
            except OSError as error:
                self._warn(error)

    def of(self, tenant: str, trajectory_id: str) -> StepIndex:
        """Return the entry of a trajectory; without one, an empty entry in the slot that it will use."""
        name = f"{tenant}\0{trajectory_id}".encode("utf-8", "surrogatepass")
        digest = int.from_bytes(blake2b(name, digest_size=16).digest(), "little")
        tag, start = digest >> 64 or 1, digest % _BUCKETS * _BUCKET_BYTES  # a tag of 0 is an empty slot
        oldest_offset, oldest_s = start, _LARGEST * 2
        for slot, (slot_tag, value, noted_s) in enumerate(_SLOT.iter_unpack(self._read_bucket(start))):
            offset = start + slot * _SLOT.size
            if slot_tag == tag and 0 < value < _LARGEST:
                return StepIndex(self, offset, tag, value)
            if noted_s < oldest_s:
                oldest_offset, oldest_s = offset, noted_s
        return StepIndex(self, oldest_offset, tag, None)

    def write(self, offset: int, tag: int, value: int) -> None:
        """Overwrite one slot; an error is logged."""
        if self._fd >= 0:
            try:
                os.pwrite(self._fd, _SLOT.pack(tag, value, int(time.time())), offset)
            except OSError as error:
                self._warn(error)

    def close(self) -> None:
        """Close the file; later writes are ignored."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_bucket(self, start: int) -> bytes:
        if self._fd >= 0:
            try:
                bucket = os.pread(self._fd, _BUCKET_BYTES, start)
            except OSError as error:
                self._warn(error)
            else:
                return bucket if len(bucket) == _BUCKET_BYTES else b""
        return b""

    def _warn(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._warned_at >= _WARN_EVERY_S:
            self._warned_at = now
            log.error(
                "step indices are not stored on disk: %s; after a restart the gateway counts the responses in each "
                "prompt instead; repair the spool folder",
                error,
            )
