"""Where events wait that Kafka's client has not taken: on disk, and in memory while there is no disk to take them."""

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
_BESIDE = 320
"""Bytes of an event in memory beside its body: its key, its ids and the objects that hold them."""


def _size(record: SpoolRecord) -> int:
    """Bytes that an event takes in memory."""
    return len(record.body) + _BESIDE


class Backlog:
    """Events in their order: those on disk, then those in memory. Its owner's lock guards it, but for `open`."""

    def __init__(self, room: BacklogLimits, watch: DeliveryObserver) -> None:
        self.spool: Spool | None = None
        self._room = room
        self._watch = watch
        self._memory: deque[SpoolRecord] = deque()
        self._memory_bytes = 0
        self._reopen_at = 0.0
        self._disk_told = -REOPEN_S
        self._lost = 0
        self._lost_told = 0.0

    def __len__(self) -> int:
        return len(self._memory) + (self.spool.unread if self.spool is not None else 0)

    @property
    def spool_bytes(self) -> int:
        """Bytes on disk."""
        return self.spool.bytes if self.spool is not None else 0

    def open(self) -> Spool | None:
        """A spool to use from now on, if one is wanted and there is none; blocks while it looks at what is there."""
        if self.spool is not None or self._room.folder is None or time.monotonic() < self._reopen_at:
            return None
        try:
            spool = Spool(self._room.folder, self._room.spool_bytes, self.lose)
        except OSError as error:
            self._tell(error)
            self._reopen_at = time.monotonic() + REOPEN_S
            return None
        if spool.unread:
            log.info("%d events of an earlier process wait in %s: they go first", spool.unread, self._room.folder)
        return spool

    def keep(self, record: SpoolRecord, *, read: bool) -> SpoolPosition | None:
        """Writes an event to disk, behind those that the disk did not take before; None: it takes none."""
        if self._room.folder is None:
            return None
        if self.spool is None:
            self._watch.unspooled(1)
            return None
        try:
            while self._memory:
                self.spool.append(self._memory[0])
                self._memory_bytes -= _size(self._memory.popleft())
            return self.spool.append(record, read=read)
        except OSError as error:
            self._watch.unspooled(1)
            self._tell(error)
            return None

    def remember(self, record: SpoolRecord) -> bool:
        """Keeps an event in memory; False: it is lost."""
        size = _size(record)
        if self._room.drop_oldest and size <= self._room.memory_bytes:
            while self._memory and self._memory_bytes + size > self._room.memory_bytes:
                self._memory_bytes -= _size(self._memory.popleft())
                self.lose(1)
        if self._memory_bytes + size > self._room.memory_bytes:
            self.lose(1)
            return False
        self._memory.append(record)
        self._memory_bytes += size
        return True

    def take(self) -> list[tuple[SpoolRecord, SpoolPosition | None]]:
        """The next events, a small number at a time; their owner has them from now on."""
        if self.spool is not None:
            found = self.spool.read(_CHUNK_BYTES)
            if found:
                return [(record, place) for record, place in found]
        taken: list[tuple[SpoolRecord, SpoolPosition | None]] = []
        while self._memory and len(taken) < _CHUNK_EVENTS:
            record = self._memory.popleft()
            self._memory_bytes -= _size(record)
            taken.append((record, None))
        return taken

    def give_back(self, events: Sequence[tuple[SpoolRecord | None, SpoolPosition | None]]) -> None:
        """Takes events back that were taken last: all of those on disk without a gap, in their order.

        Args:
            events: (None, place) for one on disk, (record, None) for one that is not.
        """
        places = [place for _, place in events if place is not None]
        if places:
            self.lose(self.spool.rewind(places) if self.spool is not None else len(places))
        again = [record for record, place in events if place is None and record is not None]
        self._memory.extendleft(reversed(again))
        self._memory_bytes += sum(map(_size, again))

    def lose(self, events: int) -> None:
        """Counts events that are gone, and says so at least each second."""
        self._lost += events
        if events:
            self._watch.lost(events)
            self.tell_lost()

    def tell_lost(self, *, at_once: bool = False) -> None:
        """Logs losses that were not logged yet, unless the last line is younger than a second."""
        now = time.monotonic()
        if self._lost and (at_once or now - self._lost_told >= 1.0):
            log.error("%d events LOST: as many wait already as may", self._lost)
            self._lost, self._lost_told = 0, now

    def close(self) -> None:
        """Leaves what is on disk there, and forgets what is in memory."""
        self._memory.clear()
        if self.spool is not None:
            self.spool.close()
            self.spool = None
        self._room = self._room._replace(folder=None, memory_bytes=0)

    def _tell(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._disk_told >= REOPEN_S:
            self._disk_told = now
            log.error("events are in memory only, lost if this process dies: the spool cannot be written: %s", error)
