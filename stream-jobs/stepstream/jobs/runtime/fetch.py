"""Represent a fetch of records with the group membership under which it was made."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepstream.jobs.runtime.record import Record, TopicPartition


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a consumer group in one generation: the right to commit the group's offsets."""

    group: str
    generation: int
    member_id: str
    instance: str | None
    """Permanent id of a static member; None: the member is dynamic."""

    def encode(self, prefix: str = "") -> bytes:
        """Return the metadata as confluent-kafka's `Consumer.consumer_group_metadata` returns them.

        The broker compares generation, member and instance with its own before it accepts offsets of a transaction.

        Args:
            prefix: of the group's name in the cluster.
        """
        instance = b"\x01" if self.instance is None else b"\x00" + self.instance.encode() + b"\x00"
        names = (prefix + self.group).encode() + b"\x00" + self.member_id.encode() + b"\x00"
        return b"CGMDv2:" + struct.pack("<i", self.generation) + names + instance


@dataclass(frozen=True, slots=True)
class Fetch:
    """Records that were fetched together, in order inside each partition."""

    member: GroupMember
    """Captured before the fetch."""
    records: Sequence[Record]
    positions: Mapping[TopicPartition, tuple[int, int]]
    """Offsets before and after the fetch of each partition that advanced, also over offsets without a record."""
