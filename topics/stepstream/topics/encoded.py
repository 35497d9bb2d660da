"""Events as they are published: with a record, or with one that is bytes already."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Event(NamedTuple):
    """One event to publish."""

    topic: str
    key: str
    record: Any
    headers: Mapping[str, str] | None = None


class Encoded(NamedTuple):
    """One event to publish, of no person: it is not sealed any more."""

    topic: str
    key: str
    event_id: str
    occurred_at_us: int
    body: bytes
    """The record as Avro, without the header."""
    headers: Mapping[str, str] | None = None
