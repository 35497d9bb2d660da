"""Identities: UUIDv7 for source events, UUIDv5 for derived ones, microsecond times."""

import hashlib
import struct
import time
from collections.abc import Sequence

from uuid_utils import UUID, uuid5, uuid7

NAMESPACE = UUID("6f1d3a52-8a3e-5c0f-9a57-3c0f0a2f7f10")
"""Namespace of every derived id; part of the protocol, never changed."""


def new_event_id() -> str:
    """A UUIDv7 (RFC 9562): rises with time, so that event ids sort by when they were made."""
    return str(uuid7())


def derived_id(job: str, *origin: str | int) -> str:
    """The id of an event derived from others: the same origin and job (name@version) give the same id.

    Args:
        job: name and version, as `govern@1`.
        origin: what it was derived from, in a fixed order: event ids, revision, kind.
    """
    return str(uuid5(NAMESPACE, "\x1f".join((job, *map(str, origin)))))


def now_us() -> int:
    """Microseconds since the Unix epoch."""
    return time.time_ns() // 1000


def token_digest(token_ids: Sequence[int]) -> str:
    """SHA-256 (hex) of token ids as little-endian int32: names a shared prefix without repeating it."""
    return hashlib.sha256(struct.pack(f"<{len(token_ids)}i", *token_ids)).hexdigest()
