"""A durable queue of events on local disk: append-only segments, read back in order, deleted once delivered.

What has been appended survives the death of the process (kill -9), since one system call hands it to the operating
system; it does not survive a loss of power within the seconds until that writes it to the disk. Events at the edge of
a crash may be read again, never skipped.

A folder has one writer at a time. Each writer takes the first subfolder that nobody holds, and sends what earlier
writers left behind in all others that nobody holds either.

The folder of a spool: each writer holds a subfolder of its own, and takes over those of writers that are gone.
"""

import contextlib
import fcntl
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stepstream.config import Settings
from stepstream.delivery import segment as file
from stepstream.delivery.segment import Schemas
from stepstream.delivery.types import SpoolPosition, SpoolRecord

SUFFIX = ".spool"
_MOST_WRITERS = 1000


def gateway_spool(settings: Settings) -> Path:
    """Where a gateway's events wait, and where it keeps step indices."""
    return settings.gateway.spool or settings.paths.data / "spool" / "gateway"


def claim(folder: Path) -> tuple[Path, int]:
    """The first subfolder that nobody holds, and its lock, which is let go with `os.close`.

    Raises:
        OSError: a subfolder cannot be made or locked, or there are too many writers.
    """
    for number in range(_MOST_WRITERS):
        own = folder / f"writer-{number}"
        own.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = _try_lock(own)
        if lock is not None:
            return own, lock
    raise OSError(f"{folder}: {_MOST_WRITERS} processes write there already")


def _try_lock(folder: Path) -> int | None:
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except BaseException:
        os.close(lock)
        raise
    return lock


def orphaned_folders(folder: Path, own: Path) -> list[Path]:
    """The subfolders of other writers that hold segments; whether those writers live, `adopt` finds out."""
    return sorted(path for path in folder.glob("writer-*") if path != own and segment_files(path))


def adopt(other: Path, own: Path) -> int:
    """Moves the segments of a writer that is gone behind one's own; returns the next free number."""
    taken = [int(path.name.removesuffix(SUFFIX)) for path in segment_files(own)]
    free = max(taken, default=-1) + 1
    lock = _try_lock(other)
    if lock is None:
        return free
    try:
        for path in segment_files(other):
            path.rename(own / f"{free:012d}{SUFFIX}")
            free += 1
    finally:
        os.close(lock)
    return free


def segment_files(folder: Path) -> list[Path]:
    """The segments of a writer, oldest first."""
    return sorted(folder.glob(f"*{SUFFIX}"))


log = logging.getLogger(__name__)

_SEGMENTS = 16
_SMALLEST_SEGMENT = 64 * 1024
_LARGEST_SEGMENT = 64 * 1024 * 1024


@dataclass(slots=True)
class _Segment:
    number: int
    path: Path
    size: int
    unread: int = 0
    delivered: int = file.BEGIN
    schemas: Schemas = field(default_factory=Schemas)
    fd: int = -1

    def open(self) -> int:
        if self.fd < 0:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self.fd

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Spool:
    """One writer's queue. Not safe to share between threads, nor across a fork; close it."""

    def __init__(self, folder: Path, limit_bytes: int, on_lost: Callable[[int], None]) -> None:
        """Takes a subfolder of `folder` and what was left behind there.

        Args:
            folder: made if it is missing; on a local disk.
            limit_bytes: most bytes on disk; beyond them the oldest segment is given up, with a log line.
            on_lost: told how many events were given up that nobody had read.

        Raises:
            OSError: the folder cannot be made or written.
        """
        self.unread = 0
        """Records not read yet."""
        self.bytes = 0
        """Bytes on disk."""
        self._limit = limit_bytes
        self._segment_bytes = min(max(limit_bytes // _SEGMENTS, _SMALLEST_SEGMENT), _LARGEST_SEGMENT)
        self._on_lost = on_lost
        self._segments: dict[int, _Segment] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._writing: _Segment | None = None
        self._next = 0
        self._reading = 0
        self._at = file.BEGIN
        self.folder, self._lock = claim(folder)
        try:
            for other in orphaned_folders(folder, self.folder):
                self._next = adopt(other, self.folder)
            for path in segment_files(self.folder):
                self._take_up(path)
        except BaseException:
            self.close()
            raise

    def append(self, record: SpoolRecord, *, read: bool = False) -> SpoolPosition:
        """Writes one record; it is there after this process's death.

        Args:
            record: what to keep.
            read: it counts as read, since the caller sends it itself. Only while nothing is unread.

        Raises:
            OSError: the disk is full or broken. Nothing was written, and the next call tries again.
        """
        segment = self._writing
        if segment is None or segment.size >= self._segment_bytes:
            segment = self._rotate()
        known = record.topic, record.schema
        number = self._numbers.get(known)
        opening = b""
        if number is None:
            number = len(self._numbers)
            opening = file.schema_frame(number, *known)
        frame = file.record_frame(number, record)
        size = len(opening) + len(frame)
        if self.bytes + size > self._limit:
            self._make_room(size, segment)
        self._write(segment, opening + frame if opening else frame)
        if opening:
            self._numbers[known] = number
            segment.schemas[number] = known
        start = segment.size + len(opening)
        segment.size = end = start + len(frame)
        self.bytes += size
        if read:
            self._reading, self._at = segment.number, end
        else:
            segment.unread += 1
            self.unread += 1
        return SpoolPosition(segment.number, start, end)

    def read(self, most_bytes: int) -> list[tuple[SpoolRecord, SpoolPosition]]:
        """The next records, oldest first, about `most_bytes` of them and at least one; empty: there are none."""
        while self.unread:
            segment = self._segments.get(self._reading)
            if segment is None or self._at >= segment.size:
                self._reading = next(number for number in self._segments if number > self._reading)
                self._at = self._segments[self._reading].delivered
                continue
            found = self._parse(segment, most_bytes)
            self._seen(segment, len(found))
            if found:
                return found
        return []

    def rewind(self, places: Sequence[SpoolPosition]) -> int:
        """Makes records unread again.

        Args:
            places: the last records read, in their order, without a gap.

        Returns:
            How many of them are gone, since their segments were given up.
        """
        held = [place for place in places if place.segment in self._segments]
        for place in held:
            self._segments[place.segment].unread += 1
        self.unread += len(held)
        if held:
            self._reading, self._at = held[0].segment, held[0].start
        return len(places) - len(held)

    def holds(self, place: SpoolPosition) -> bool:
        """Whether the record is still on disk."""
        return place.segment in self._segments

    def mark_delivered(self, place: SpoolPosition) -> None:
        """Notes that this record and all before it have arrived. A note that cannot be written costs repetitions."""
        while (oldest := next(iter(self._segments), place.segment)) < place.segment:
            self._remove(self._segments[oldest])
        segment = self._segments.get(place.segment)
        if segment is None:
            return
        segment.delivered = place.end
        if segment is not self._writing and segment.delivered >= segment.size:
            self._remove(segment)
            return
        with contextlib.suppress(OSError):
            file.write_mark(segment.open(), place.end)

    def close(self) -> None:
        """Lets the folder go. What was not delivered stays for the next writer."""
        for segment in list(self._segments.values()):
            if segment.delivered >= segment.size:
                self._remove(segment)
            segment.close()
        os.close(self._lock)

    def _write(self, segment: _Segment, data: bytes) -> None:
        fd = segment.open()
        fault: OSError | None = None
        try:
            if os.write(fd, data) == len(data):
                return
        except OSError as error:
            fault = error
        try:  # a piece of it may be there
            os.ftruncate(fd, segment.size)
            os.lseek(fd, segment.size, os.SEEK_SET)
        except OSError:
            self._writing = None  # what comes next goes into another file
        raise fault or OSError(f"the disk of {segment.path} took a part of an event only: it is full")

    def _rotate(self) -> _Segment:
        segment = _Segment(self._next, self.folder / f"{self._next:012d}{SUFFIX}", file.BEGIN)
        segment.fd = os.open(segment.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._next += 1
        self._segments[segment.number] = segment
        self.bytes += segment.size
        before, self._writing = self._writing, segment
        self._numbers = {}
        if before is not None and before.delivered >= before.size:
            self._remove(before)
        try:
            if os.write(segment.fd, file.blank_header()) != file.BEGIN:
                raise OSError(f"the disk of {segment.path} is full")
        except OSError:
            self._writing = None
            self._remove(segment)
            raise
        return segment

    def _make_room(self, size: int, keep: _Segment) -> None:
        while self.bytes + size > self._limit:
            oldest = next(iter(self._segments.values()))
            if oldest is keep:
                raise OSError(f"one event of {size} bytes does not fit a spool of {self._limit}: raise its limit")
            lost = oldest.unread
            self._remove(oldest)
            log.error(
                "the spool %s is full (%d bytes): its oldest segment is given up, %d events are LOST; "
                "bring Kafka and the registry back, or give it more room",
                self.folder,
                self._limit,
                lost,
            )
            if lost:
                self._on_lost(lost)

    def _remove(self, segment: _Segment) -> None:
        segment.close()
        with contextlib.suppress(OSError):
            segment.path.unlink()
        del self._segments[segment.number]
        self.bytes -= segment.size
        self.unread -= segment.unread
        if segment is self._writing:
            self._writing = None

    def _parse(self, segment: _Segment, most_bytes: int) -> list[tuple[SpoolRecord, SpoolPosition]]:
        whole = segment.size - self._at
        for size in (min(most_bytes, whole), whole):  # a record larger than was asked for comes alone, after all
            found = []
            before = begin = self._at
            for payload, after in file.frames(os.pread(segment.open(), size, begin)):
                record = file.parse(payload, segment.schemas)
                self._at = begin + after
                if record is not None:
                    found.append((record, SpoolPosition(segment.number, before, self._at)))
                before = self._at
            if found or self._at == segment.size:
                return found
        log.error("%s is damaged after byte %d: %d events are LOST", segment.path, self._at, segment.unread)
        self._on_lost(segment.unread)
        self._seen(segment, segment.unread)
        self._at = segment.size
        return []

    def _seen(self, segment: _Segment, records: int) -> None:
        segment.unread -= records
        self.unread -= records

    def _take_up(self, path: Path) -> None:
        """Counts what a file of an earlier writer holds, and cuts off what its end left unfinished."""
        number = int(path.name.removesuffix(SUFFIX))
        self._next = max(self._next, number + 1)
        data = path.read_bytes()
        if len(data) >= file.BEGIN and not data.startswith(file.MAGIC):
            log.error("%s is no spool file of this version: left as it is, under another name", path)
            path.rename(path.with_suffix(".unknown"))
            return
        segment = _Segment(number, path, file.BEGIN, delivered=file.read_mark(data))
        for payload, end in file.frames(data, file.BEGIN):
            segment.size = end
            if file.is_record(payload):
                segment.unread += end > segment.delivered
            else:
                file.parse(payload, segment.schemas)
        if segment.size < len(data):
            log.warning("%s: cut off %d bytes that its writer did not finish", path, len(data) - segment.size)
        if not segment.unread:
            path.unlink()
            return
        os.truncate(path, segment.size)
        if not self._segments:
            self._reading, self._at = number, max(segment.delivered, file.BEGIN)
        self._segments[number] = segment
        self.bytes += segment.size
        self.unread += segment.unread
