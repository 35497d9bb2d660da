"""Declare the events, spool records, observer and limits that the delivery modules share. Pure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class Event(NamedTuple):
    """An event to publish, with its record as a dict."""

    topic: str
    key: str
    record: Any
    headers: Mapping[str, str] | None = None


class EncodedEvent(NamedTuple):
    """An event to publish, with its record as Avro. It names no person: nothing seals it."""

    topic: str
    key: str
    event_id: str
    occurred_at_us: int
    body: bytes
    """Record as Avro, without the registry's five-byte header."""
    headers: Mapping[str, str] | None = None


class SpoolRecord(NamedTuple):
    """An event in the backlog: encoded, without the five-byte header, which needs the registry."""

    topic: str
    key: str
    event_id: str
    occurred_at_us: int
    headers: Mapping[str, str] | None
    schema: str
    """Text of the schema that `body` is written with."""
    body: bytes


class SpoolPosition(NamedTuple):
    """Position of a record on disk: number of its segment, offset of its first byte, offset after its last byte."""

    segment: int
    start: int
    end: int


class DeliveryObserver(Protocol):
    """Receives the outcome of events, as counts. Any thread may call it; it must not block."""

    def on_delivered(self, events: int) -> None:
        """Kafka acknowledged these events."""

    def on_rejected(self, events: int) -> None:
        """These events fit no schema, or Kafka rejected them with a permanent error."""

    def on_dropped(self, events: int) -> None:
        """These events are lost: the backlog was full, or the process stopped before delivery."""

    def on_unspooled(self, events: int) -> None:
        """The disk failed: these events are in memory only."""

    def on_backlog(self, events: int, spool_bytes: int) -> None:
        """Current number of unacknowledged events, and size of the spool in bytes."""


class BacklogLimits(NamedTuple):
    """Place and largest size of a backlog."""

    folder: Path | None
    """Folder of the spool; None: events stay in memory."""
    spool_bytes: int
    memory_bytes: int
    drop_oldest: bool = False
    """True: full memory drops its oldest event. False: it drops the new one."""
