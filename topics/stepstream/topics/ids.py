"""Create event ids (UUIDv7 for source events, UUIDv5 for derived ones), timestamps and token digests."""

import hashlib
import struct
import time
from collections.abc import Sequence

from uuid_utils import UUID, uuid5, uuid7

NAMESPACE = UUID("6f1d3a52-8a3e-5c0f-9a57-3c0f0a2f7f10")
"""Namespace of every derived id. It is part of the protocol and never changes."""


def new_event_id() -> str:
    """Return a UUIDv7 (RFC 9562). Ids sort by the time of their creation."""
    return str(uuid7())


def derived_id(job: str, *origin: str | int) -> str:
    """Return the id of a derived event: the same job and origin always give the same id.

    Args:
        job: name and version, as `govern@1`.
        origin: sources of the event in a fixed order: event ids, revision, kind.
    """
    return str(uuid5(NAMESPACE, "\x1f".join((job, *map(str, origin)))))


def now_us() -> int:
    """Return the time in microseconds since the Unix epoch."""
    return time.time_ns() // 1000


def token_digest(token_ids: Sequence[int]) -> str:
    """Return the SHA-256 (hex) of token ids as little-endian int32: it identifies a shared prefix."""
    return hashlib.sha256(struct.pack(f"<{len(token_ids)}i", *token_ids)).hexdigest()
