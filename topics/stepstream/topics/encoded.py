"""Events whose records are bytes already."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Encoded(NamedTuple):
    """One event to publish, of no person: it is not sealed any more."""

    topic: str
    key: str
    event_id: str
    occurred_at_us: int
    body: bytes
    """The record as Avro, without the header."""
    headers: Mapping[str, str] | None = None

    def envelope(self) -> dict[str, Any]:
        """What of the record stands beside the body too."""
        return {"event_id": self.event_id, "occurred_at_us": self.occurred_at_us}
