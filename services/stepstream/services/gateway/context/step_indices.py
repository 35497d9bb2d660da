"""The next step index of every named trajectory, on disk: from there a gateway goes on that died or forgot one.

One file of slots of 16 bytes, for all gateway processes of a folder. The digest of a trajectory's name chooses a bucket
of slots; in a full one the trajectory that was longest without a call gives up its place. An index is written with one
system call of about a microsecond, which survives the death of the process (kill -9), not a loss of power within the
seconds until the operating system writes it to the disk. A disk that fails costs this knowledge, never a call.
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
"""Trajectories that have room: 16 MiB of disk, taken as it is used."""
_WAYS = 8
_SLOT = struct.Struct("<QII")
_BUCKET_BYTES = _WAYS * _SLOT.size
_BUCKETS = SLOTS // _WAYS
_LARGEST = 2**31
_WARN_EVERY_S = 60.0


class NextIndex:
    """One trajectory's. `value` is None where none is known."""

    __slots__ = ("_at", "_table", "_tag", "value")

    def __init__(self, table: "NextIndices", at: int, tag: int, value: int | None) -> None:
        self._table = table
        self._at = at
        self._tag = tag
        self.value = value

    def note(self, value: int) -> None:
        """Keeps the index that the next step gets, where it is another than before."""
        if value != self.value:
            self.value = value
            self._table.write(self._at, self._tag, value)


class NextIndices:
    """The file. Close it; without a folder, or where the disk takes none, it knows nothing."""

    def __init__(self, folder: Path | None = None) -> None:
        """Opens the file of `folder`; both are made where they are missing."""
        self._fd = -1
        self._warned_at = -_WARN_EVERY_S
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._fd = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                os.ftruncate(self._fd, SLOTS * _SLOT.size)
            except OSError as error:
                self._tell(error)

    def of(self, tenant: str, trajectory_id: str) -> NextIndex:
        """What is kept of a trajectory, and where more is to be kept."""
        name = f"{tenant}\0{trajectory_id}".encode("utf-8", "surrogatepass")
        digest = int.from_bytes(blake2b(name, digest_size=16).digest(), "little")
        tag, at = digest >> 64 or 1, digest % _BUCKETS * _BUCKET_BYTES  # a tag of 0 is an empty slot
        oldest_at, oldest_s = at, _LARGEST * 2
        for slot, (kept, value, noted_s) in enumerate(_SLOT.iter_unpack(self._bucket(at))):
            here = at + slot * _SLOT.size
            if kept == tag and 0 < value < _LARGEST:
                return NextIndex(self, here, tag, value)
            if noted_s < oldest_s:
                oldest_at, oldest_s = here, noted_s
        return NextIndex(self, oldest_at, tag, None)

    def write(self, at: int, tag: int, value: int) -> None:
        """Fills one slot."""
        if self._fd >= 0:
            try:
                os.pwrite(self._fd, _SLOT.pack(tag, value, int(time.time())), at)
            except OSError as error:
                self._tell(error)

    def close(self) -> None:
        """Lets the file go; nothing is kept from now on."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _bucket(self, at: int) -> bytes:
        if self._fd >= 0:
            try:
                found = os.pread(self._fd, _BUCKET_BYTES, at)
            except OSError as error:
                self._tell(error)
            else:
                return found if len(found) == _BUCKET_BYTES else b""
        return b""

    def _tell(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._warned_at >= _WARN_EVERY_S:
            self._warned_at = now
            log.error(
                "step indices are not kept on disk: after a restart they are counted from the prompts' responses: %s",
                error,
            )
