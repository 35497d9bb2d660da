"""Events as they are published: with a record, or with one that is bytes already.

x

x

x
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class Event(NamedTuple):
    """One event to publish."""

    topic: str
    key: str
    record: Any
    headers: Mapping[str, str] | None = None


class EncodedEvent(NamedTuple):
    """One event to publish, of no person: it is not sealed any more."""

    topic: str
    key: str
    event_id: str
    occurred_at_us: int
    body: bytes
    """The record as Avro, without the header."""
    headers: Mapping[str, str] | None = None


class SpoolRecord(NamedTuple):
    """One event as it waits: encoded, but for the five-byte header that the registry decides."""

    topic: str
    key: str
    event_id: str
    occurred_at_us: int
    headers: Mapping[str, str] | None
    schema: str
    """Text of the schema that `body` is written with."""
    body: bytes


class SpoolPosition(NamedTuple):
    """Where a record stands: its segment, and the offsets of its first byte and of the byte after it."""

    segment: int
    start: int
    end: int


class DeliveryObserver(Protocol):
    """Told what becomes of events; called from any thread, and must not block."""

    def delivered(self, events: int) -> None:
        """Kafka has acknowledged them."""

    def refused(self, events: int) -> None:
        """They fit no schema, or Kafka refused them for good."""

    def lost(self, events: int) -> None:
        """They were given up, since there was no more room."""

    def unspooled(self, events: int) -> None:
        """The disk did not take them: they are in memory only."""

    def backlog(self, events: int, spool_bytes: int) -> None:
        """So many are not acknowledged yet, and the spool takes so many bytes."""


class BacklogLimits(NamedTuple):
    """How much may wait, and where.

    Without a folder, events wait in memory only. `drop_oldest`: where memory is full, the oldest event is given up
    instead of the newest.
    """

    folder: Path | None
    spool_bytes: int
    memory_bytes: int
    drop_oldest: bool = False
