"""Hold events until Kafka's client takes them: on disk, and in memory while the disk fails or no folder is set."""

import logging
import time
from collections import deque
from collections.abc import Sequence

from stepstream.delivery.spool import Spool
from stepstream.delivery.types import BacklogLimits, DeliveryObserver, SpoolPosition, SpoolRecord

log = logging.getLogger(__name__)

REOPEN_S = 5.0
_CHUNK_BYTES = 512 * 1024
_CHUNK_EVENTS = 64
_OVERHEAD_BYTES = 320
"""Memory of an event beside its body: its key, its ids and the objects that hold them."""


class Backlog:
    """Events in order: those on disk, then those in memory. The owner's lock guards all methods but `open_spool`."""

    def __init__(self, limits: BacklogLimits, observer: DeliveryObserver) -> None:
        self.spool: Spool | None = None
        self._limits = limits
        self._observer = observer
        self._memory: deque[SpoolRecord] = deque()
        self._memory_bytes = 0
        self._reopen_at = 0.0
        self._disk_logged_at = -REOPEN_S
        self._unlogged_drops = 0
        self._drops_logged_at = 0.0

    def __len__(self) -> int:
        return len(self._memory) + (self.spool.unread if self.spool is not None else 0)

    @property
    def spool_bytes(self) -> int:
        """Bytes on disk."""
        return self.spool.size_bytes if self.spool is not None else 0

    def open_spool(self) -> Spool | None:
        """Return a new spool if a folder is set and no spool is open, else None. Blocks while it reads old segments.

        After a disk error it returns None for `REOPEN_S` seconds.
        """
        if self.spool is not None or self._limits.folder is None or time.monotonic() < self._reopen_at:
            return None
        try:
            spool = Spool(self._limits.folder, self._limits.spool_bytes, self.count_dropped)
        except OSError as error:
            self._log_disk_error(error)
            self._reopen_at = time.monotonic() + REOPEN_S
            return None
        if spool.unread:
            log.info("sending %d events of earlier processes from %s first", spool.unread, self._limits.folder)
        return spool

    def append_to_spool(self, record: SpoolRecord, *, mark_read: bool) -> SpoolPosition | None:
        """Write an event to disk, after all events in memory; None: there is no disk, or it failed."""
        if self._limits.folder is None:
            return None
        if self.spool is None:
            self._observer.on_unspooled(1)
            return None
        try:
            while self._memory:
                self.spool.append(self._memory[0])
                self._memory_bytes -= _size(self._memory.popleft())
            return self.spool.append(record, mark_read=mark_read)
        except OSError as error:
            self._observer.on_unspooled(1)
            self._log_disk_error(error)
            return None

    def append_to_memory(self, record: SpoolRecord) -> bool:
        """Append an event in memory; False: memory is full and the event is dropped."""
        size = _size(record)
        if self._limits.drop_oldest and size <= self._limits.memory_bytes:
            while self._memory and self._memory_bytes + size > self._limits.memory_bytes:
                self._memory_bytes -= _size(self._memory.popleft())
                self.count_dropped(1)
        if self._memory_bytes + size > self._limits.memory_bytes:
            self.count_dropped(1)
            return False
        self._memory.append(record)
        self._memory_bytes += size
        return True

    def take(self) -> list[tuple[SpoolRecord, SpoolPosition | None]]:
        """Remove and return a small number of the oldest events; the caller owns them."""
        if self.spool is not None:
            records = self.spool.read(_CHUNK_BYTES)
            if records:
                return [(record, position) for record, position in records]
        taken: list[tuple[SpoolRecord, SpoolPosition | None]] = []
        while self._memory and len(taken) < _CHUNK_EVENTS:
            record = self._memory.popleft()
            self._memory_bytes -= _size(record)
            taken.append((record, None))
        return taken

    def give_back(self, events: Sequence[tuple[SpoolRecord | None, SpoolPosition | None]]) -> None:
        """Return the events taken last to the front: all of those on disk without a gap, in order.

        Args:
            events: (None, position) for an event on disk, (record, None) for one in memory.
        """
        positions = [position for _, position in events if position is not None]
        if positions:
            self.count_dropped(self.spool.rewind(positions) if self.spool is not None else len(positions))
        records = [record for record, position in events if position is None and record is not None]
        self._memory.extendleft(reversed(records))
        self._memory_bytes += sum(map(_size, records))

    def count_dropped(self, events: int) -> None:
        """Count lost events; log them at most once a second."""
        self._unlogged_drops += events
        if events:
            self._observer.on_dropped(events)
            self.log_dropped()

    def log_dropped(self, *, now: bool = False) -> None:
        """Log the drops since the last log line, at most once a second unless `now`."""
        at = time.monotonic()
        if self._unlogged_drops and (now or at - self._drops_logged_at >= 1.0):
            log.error(
                "dropped %d events: backlog full, or process stopped; restore Kafka or raise the backlog's limit",
                self._unlogged_drops,
            )
            self._unlogged_drops, self._drops_logged_at = 0, at

    def close(self) -> None:
        """Discard the events in memory; those on disk stay there."""
        self._memory.clear()
        if self.spool is not None:
            self.spool.close()
            self.spool = None
        self._limits = self._limits._replace(folder=None, memory_bytes=0)

    def _log_disk_error(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._disk_logged_at >= REOPEN_S:
            self._disk_logged_at = now
            log.error("cannot write the spool: %s; events are in memory only and die with this process", error)


def _size(record: SpoolRecord) -> int:
    """Return the bytes that an event takes in memory."""
    return len(record.body) + _OVERHEAD_BYTES
