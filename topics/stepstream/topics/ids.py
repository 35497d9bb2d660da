"""Create event ids (UUIDv7 for source events, UUIDv5 for derived ones), identities, timestamps and token digests."""

import hashlib
import struct
import time
from collections.abc import Callable, Sequence
from functools import lru_cache

from uuid_utils import UUID, uuid5, uuid7

NAMESPACE = UUID("6f1d3a52-8a3e-5c0f-9a57-3c0f0a2f7f10")
"""Namespace of every derived id. It is part of the protocol and never changes."""
DEFAULT_TENANT = "default"
"""Tenant of records that name none."""
SEPARATOR = "\x1f"


def new_event_id() -> str:
    """Return a UUIDv7 (RFC 9562). Ids sort by the time of their creation."""
    return str(uuid7())


def derived_id(job: str, *origin: str | int, tenant: str = DEFAULT_TENANT) -> str:
    """Return the id of a derived event: the same tenant, job and origin always give the same id.

    Args:
        job: name and version, as `govern@1`.
        origin: sources of the event in a fixed order: event ids, revision, kind.
        tenant: whose event it is; each tenant has a namespace of its own. The default one, also of events that are of
            no tenant, is that of the releases in which ids did not depend on the tenant.
    """
    return str(uuid5(_namespace(tenant), SEPARATOR.join((job, *map(str, origin)))))


def derived_ids(tenant: str) -> Callable[[str], str]:
    """Return a function that does as `derived_id` for this tenant; it takes job and origin, joined by `SEPARATOR`."""
    namespace = _namespace(tenant)
    return lambda origin: str(uuid5(namespace, origin))


@lru_cache(1000)
def _namespace(tenant: str) -> UUID:
    return NAMESPACE if tenant == DEFAULT_TENANT else uuid5(NAMESPACE, f"tenant\x1f{tenant}")


def trajectory_key(tenant: str, trajectory_id: str) -> bytes:
    """Return the identity of a trajectory as bytes.

    No two identities share them, because `govern` admits no tenant with a NUL.
    """
    return f"{tenant}\0{trajectory_id}".encode("utf-8", "surrogatepass")


def trajectory_name(tenant: str, trajectory_id: str) -> bytes:
    """Return a digest of a trajectory's identity, for keys of a job's state: 16 bytes.

    It differs from the digest of any id alone, by which earlier releases named trajectories.
    """
    return hashlib.blake2b(trajectory_key(tenant, trajectory_id), digest_size=16, person=b"trajectory").digest()


def now_us() -> int:
    """Return the time in microseconds since the Unix epoch."""
    return time.time_ns() // 1000


def token_digest(token_ids: Sequence[int]) -> str:
    """Return the SHA-256 (hex) of token ids as little-endian int32: it identifies a shared prefix."""
    return hashlib.sha256(struct.pack(f"<{len(token_ids)}i", *token_ids)).hexdigest()
