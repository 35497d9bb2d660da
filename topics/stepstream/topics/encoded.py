"""Events whose records are bytes already."""

from collections.abc import Mapping
from typing import NamedTuple


class Encoded(NamedTuple):
    """One event to publish, of no person: it is not sealed any more."""

    topic: str
    key: str
    event_id: str
    occurred_at_us: int
    body: bytes
    """The record as Avro, without the header."""
    headers: Mapping[str, str] | None = None
