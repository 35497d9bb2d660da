"""Hash the owners of a record, so that an index can name the records of a person without the person's name. Pure.

A record is in the index under each of its owners: the keys that seal it, the person whom it names, and its trajectory
where `find_records` looks for it by its trajectory. Two owners with the same hash cost a reading, and no error: the
index only selects what is read from the log.
"""

from collections.abc import Callable
from hashlib import blake2b

from stepstream.crypto.sealing import key_ids
from stepstream.topics.catalogue import GOVERNED_STEPS, LABELED_TRAJECTORIES
from stepstream.topics.consumer import Event

FORMAT = 1
"""Number of this set of rules. Raise it with each change: an index with another number is built anew."""
ANYONE = 0
"""Owner of a record that cannot be decoded: it may be anyone's."""

SubjectOf = Callable[[str, str], str]
"""Returns the keyed digest of a tenant and user."""


def owners_of(event: Event, subject_of: SubjectOf) -> set[int]:
    """Return the hashes of everyone whose search has to read a record of an intake or governed topic."""
    record = event.record
    if record is None:
        return {ANYONE}
    owners = {hash_key(key_id) for key_id in key_ids(record["seal_key"])}
    if record["user"] is not None:
        owners.add(hash_person(subject_of(record["tenant"], record["user"])))
    if not owners or event.topic in (GOVERNED_STEPS, LABELED_TRAJECTORIES):
        owners.add(hash_trajectory(record["tenant"], record["trajectory_id"]))
    return owners


def hash_key(key_id: str) -> int:
    """Return the hash of an encryption key's id."""
    return _hash("key", key_id)


def hash_person(subject: str) -> int:
    """Return the hash of a person's keyed digest."""
    return _hash("person", subject)


def hash_trajectory(tenant: str, trajectory_id: str) -> int:
    """Return the hash of a trajectory's identity."""
    return _hash("trajectory", tenant, trajectory_id)


def hash_basis(topic_id: str, digest_key: str) -> int:
    """Return the hash of everything on which the rows of a topic rest.

    Args:
        topic_id: Kafka's id of the topic; a topic that is created again has another.
        digest_key: digest of a fixed person; another master key gives another.
    """
    return _hash("basis", str(FORMAT), topic_id, digest_key)


def _hash(*parts: str) -> int:
    """Return 63 bits that are not 0."""
    digest = blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1 or 1
