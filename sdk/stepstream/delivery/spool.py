"""Queue events on local disk: append them to segments, read them in order, delete delivered segments.

An appended record survives the process's death (kill -9), because one system call gives it to the operating system. It
does not survive a power failure in the seconds before the operating system writes it to disk. After a crash the newest
events may be read twice; none is skipped.

A folder of a spool has a subfolder `writer-N` for each writing process, locked while that process lives. A new writer
takes the first unlocked subfolder. It also takes over the segments in all other unlocked subfolders.
"""

import contextlib
import fcntl
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stepstream.delivery.segment import (
    HEADER_BYTES,
    MAGIC,
    Schemas,
    blank_header,
    is_record,
    parse_frame,
    read_frames,
    read_mark,
    record_frame,
    schema_frame,
    write_mark,
)
from stepstream.delivery.types import SpoolPosition, SpoolRecord

log = logging.getLogger(__name__)

SUFFIX = ".spool"
_MAX_WRITERS = 1000
_SEGMENTS = 16
_MIN_SEGMENT_BYTES = 64 * 1024
_MAX_SEGMENT_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class _Segment:
    number: int
    path: Path
    size: int
    unread: int = 0
    delivered_end: int = HEADER_BYTES
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
    """The queue of one writer. Do not share it between threads or across a fork; close it."""

    def __init__(self, folder: Path, limit_bytes: int, on_dropped: Callable[[int], None]) -> None:
        """Lock a subfolder of `folder` and take over the segments of dead writers.

        Args:
            folder: on a local disk; created if missing.
            limit_bytes: most bytes on disk. A full spool drops its oldest segment and logs this.
            on_dropped: called with the number of unread events in a dropped segment.

        Raises:
            OSError: the folder cannot be created or written.
        """
        self.unread = 0
        """Number of unread records."""
        self.size_bytes = 0
        """Bytes on disk."""
        self._limit = limit_bytes
        self._segment_bytes = min(max(limit_bytes // _SEGMENTS, _MIN_SEGMENT_BYTES), _MAX_SEGMENT_BYTES)
        self._on_dropped = on_dropped
        self._segments: dict[int, _Segment] = {}
        self._write_segment: _Segment | None = None
        self._schema_numbers: dict[tuple[str, str], int] = {}
        self._next_number = 0
        self._read_number = 0
        self._read_offset = HEADER_BYTES
        self.folder, self._lock = claim_folder(folder)
        try:
            for other in orphaned_folders(folder, self.folder):
                self._next_number = adopt_segments(other, self.folder)
            for path in segment_files(self.folder):
                self._recover(path)
        except BaseException:
            self.close()
            raise

    def append(self, record: SpoolRecord, *, mark_read: bool = False) -> SpoolPosition:
        """Write one record; it survives the death of this process.

        Args:
            record: the event.
            mark_read: count the record as read, since the caller sends it. Allowed only while nothing is unread.

        Raises:
            OSError: the disk is full or broken. Nothing is written, and the next call tries again.
        """
        segment = self._write_segment
        if segment is None or segment.size >= self._segment_bytes:
            segment = self._rotate()
        topic_schema = record.topic, record.schema
        number = self._schema_numbers.get(topic_schema)
        prefix = b""
        if number is None:
            number = len(self._schema_numbers)
            prefix = schema_frame(number, *topic_schema)
        frame = record_frame(number, record)
        size = len(prefix) + len(frame)
        if self.size_bytes + size > self._limit:
            self._make_room(size, segment)
        self._write(segment, prefix + frame if prefix else frame)
        if prefix:
            self._schema_numbers[topic_schema] = number
            segment.schemas[number] = topic_schema
        start = segment.size + len(prefix)
        segment.size = end = start + len(frame)
        self.size_bytes += size
        if mark_read:
            self._read_number, self._read_offset = segment.number, end
        else:
            segment.unread += 1
            self.unread += 1
        return SpoolPosition(segment.number, start, end)

    def read(self, max_bytes: int) -> list[tuple[SpoolRecord, SpoolPosition]]:
        """Return the oldest unread records, about `max_bytes` of them and at least one; empty: none is unread."""
        while self.unread:
            segment = self._segments.get(self._read_number)
            if segment is None or self._read_offset >= segment.size:
                self._read_number = next(number for number in self._segments if number > self._read_number)
                self._read_offset = self._segments[self._read_number].delivered_end
                continue
            records = self._read_chunk(segment, max_bytes)
            self._count_read(segment, len(records))
            if records:
                return records
        return []

    def rewind(self, positions: Sequence[SpoolPosition]) -> int:
        """Mark records as unread.

        Args:
            positions: of the last records read, in order, without a gap.

        Returns:
            How many of them are dropped with their segments.
        """
        present = [position for position in positions if position.segment in self._segments]
        for position in present:
            self._segments[position.segment].unread += 1
        self.unread += len(present)
        if present:
            self._read_number, self._read_offset = present[0].segment, present[0].start
        return len(positions) - len(present)

    def contains(self, position: SpoolPosition) -> bool:
        """Return True if the record is on disk."""
        return position.segment in self._segments

    def mark_delivered(self, position: SpoolPosition) -> None:
        """Mark this record and all before it as delivered. If the mark cannot be written, events may repeat."""
        while (oldest := next(iter(self._segments), position.segment)) < position.segment:
            self._remove(self._segments[oldest])
        segment = self._segments.get(position.segment)
        if segment is None:
            return
        segment.delivered_end = position.end
        if segment is not self._write_segment and segment.delivered_end >= segment.size:
            self._remove(segment)
            return
        with contextlib.suppress(OSError):
            write_mark(segment.open(), position.end)

    def close(self) -> None:
        """Unlock the subfolder. Undelivered records stay for the next writer."""
        for segment in list(self._segments.values()):
            if segment.delivered_end >= segment.size:
                self._remove(segment)
            segment.close()
        os.close(self._lock)

    def _rotate(self) -> _Segment:
        number = self._next_number
        segment = _Segment(number, self.folder / f"{number:012d}{SUFFIX}", HEADER_BYTES)
        segment.fd = os.open(segment.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._next_number += 1
        self._segments[number] = segment
        self.size_bytes += segment.size
        before, self._write_segment = self._write_segment, segment
        self._schema_numbers = {}
        if before is not None and before.delivered_end >= before.size:
            self._remove(before)
        try:
            if os.write(segment.fd, blank_header()) != HEADER_BYTES:
                raise OSError(f"cannot create {segment.path}: the disk is full; free space")
        except OSError:
            self._write_segment = None
            self._remove(segment)
            raise
        return segment

    def _make_room(self, size: int, current: _Segment) -> None:
        while self.size_bytes + size > self._limit:
            oldest = next(iter(self._segments.values()))
            if oldest is current:
                raise OSError(f"an event of {size} bytes does not fit into a spool of {self._limit}: raise its limit")
            dropped = oldest.unread
            self._remove(oldest)
            log.error(
                "dropped the oldest segment of %s with %d unread events: the spool is full (%d bytes); "
                "restore Kafka and the schema registry, or raise the limit",
                self.folder,
                dropped,
                self._limit,
            )
            if dropped:
                self._on_dropped(dropped)

    def _write(self, segment: _Segment, data: bytes) -> None:
        fd = segment.open()
        cause: OSError | None = None
        try:
            if os.write(fd, data) == len(data):
                return
        except OSError as error:
            cause = error
        try:  # remove a partial frame
            os.ftruncate(fd, segment.size)
            os.lseek(fd, segment.size, os.SEEK_SET)
        except OSError:
            self._write_segment = None  # the next record starts another file
        raise cause or OSError(f"wrote only part of an event to {segment.path}: the disk is full; free space")

    def _read_chunk(self, segment: _Segment, max_bytes: int) -> list[tuple[SpoolRecord, SpoolPosition]]:
        remaining = segment.size - self._read_offset
        for size in (min(max_bytes, remaining), remaining):  # one record may be larger than `max_bytes`
            records = []
            before = start = self._read_offset
            for payload, after in read_frames(os.pread(segment.open(), size, start)):
                record = parse_frame(payload, segment.schemas)
                self._read_offset = start + after
                if record is not None:
                    records.append((record, SpoolPosition(segment.number, before, self._read_offset)))
                before = self._read_offset
            if records or self._read_offset == segment.size:
                return records
        log.error("dropped %d events: %s is damaged after byte %d", segment.unread, segment.path, self._read_offset)
        self._on_dropped(segment.unread)
        self._count_read(segment, segment.unread)
        self._read_offset = segment.size
        return []

    def _count_read(self, segment: _Segment, records: int) -> None:
        segment.unread -= records
        self.unread -= records

    def _remove(self, segment: _Segment) -> None:
        segment.close()
        with contextlib.suppress(OSError):
            segment.path.unlink()
        del self._segments[segment.number]
        self.size_bytes -= segment.size
        self.unread -= segment.unread
        if segment is self._write_segment:
            self._write_segment = None

    def _recover(self, path: Path) -> None:
        """Count the undelivered records of a dead writer's file, and cut off its unfinished last frame."""
        number = int(path.name.removesuffix(SUFFIX))
        self._next_number = max(self._next_number, number + 1)
        data = path.read_bytes()
        if len(data) >= HEADER_BYTES and not data.startswith(MAGIC):
            renamed = path.rename(path.with_suffix(".unknown"))
            log.error("%s is not a spool file of this version: renamed it to %s", path, renamed.name)
            return
        segment = _Segment(number, path, HEADER_BYTES, delivered_end=read_mark(data))
        for payload, end in read_frames(data, HEADER_BYTES):
            segment.size = end
            if is_record(payload):
                segment.unread += end > segment.delivered_end
            else:
                parse_frame(payload, segment.schemas)
        if segment.size < len(data):
            log.warning("cut %d unfinished bytes off %s", len(data) - segment.size, path)
        if not segment.unread:
            path.unlink()
            return
        os.truncate(path, segment.size)
        if not self._segments:
            self._read_number, self._read_offset = number, max(segment.delivered_end, HEADER_BYTES)
        self._segments[number] = segment
        self.size_bytes += segment.size
        self.unread += segment.unread


def claim_folder(folder: Path) -> tuple[Path, int]:
    """Lock the first unlocked subfolder; return it and its lock's file descriptor, which `os.close` unlocks.

    Raises:
        OSError: a subfolder cannot be created or locked, or there are too many writers.
    """
    for number in range(_MAX_WRITERS):
        own = folder / f"writer-{number}"
        own.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = _try_lock(own)
        if lock is not None:
            return own, lock
    raise OSError(f"{folder} has {_MAX_WRITERS} writing processes: use another folder")


def orphaned_folders(folder: Path, own: Path) -> list[Path]:
    """Return the other writers' subfolders that contain segments; `adopt_segments` skips those of live writers."""
    return sorted(path for path in folder.glob("writer-*") if path != own and segment_files(path))


def adopt_segments(other: Path, own: Path) -> int:
    """Move the segments of a dead writer behind one's own; return the next free segment number."""
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
    """Return the segments of a writer, oldest first: files that have a number as their name."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdecimal())


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
