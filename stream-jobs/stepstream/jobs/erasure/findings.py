"""Hold what is known of a person's records, without their content."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass(frozen=True)
class Person:
    """The person to erase."""

    tenant: str
    user: str

    def owns(self, record: Any) -> bool:
        """Return True if a readable record names this person."""
        return bool(record["user"] == self.user and record["tenant"] == self.tenant)


@dataclass
class OffsetRange:
    """Some records of a partition."""

    first: int
    last: int
    records: int
    """Number of the person's records in the range."""

    def add(self, offset: int) -> None:
        """Take in a record."""
        self.first, self.last = min(self.first, offset), max(self.last, offset)
        self.records += 1


@dataclass
class Findings:
    """Ids and offsets of a person's records. They contain no name and no content, so they may be stored."""

    key_ids: set[str] = field(default_factory=set)
    """The person's keys."""
    trajectories: set[str] = field(default_factory=set)
    """Trajectories in which the person took part, at least by feedback."""
    own_trajectories: set[str] = field(default_factory=set)
    """Trajectories whose steps name the person. Records there that name nobody belong to the person too."""
    labels: set[tuple[int, int]] = field(default_factory=set)
    """Partition and offset of the person's labelled trajectories."""
    steps_of_others: set[str] = field(default_factory=set)
    """Ids of the readable governed steps in `own_trajectories` that belong to other people."""
    sealed: int = 0
    """Number of records sealed under the person's keys."""
    requested_key_ids: set[str] = field(default_factory=set)
    """Those of the person's keys that this erasure destroys; earlier ones destroyed the others."""
    unreadable: dict[tuple[str, int], OffsetRange] = field(default_factory=dict)
    """Records sealed under one of `requested_key_ids`, by (topic, partition)."""
    unsealed: dict[tuple[str, int], OffsetRange] = field(default_factory=dict)
    """Unsealed records by (topic, partition), on topics whose records can be deleted."""
    open_traces: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """Offsets of the unsealed records of open traces."""
    remaining: Counter[str] = field(default_factory=Counter)
    """Number of readable records, by topic, that the erasure leaves: unsealed records on governed topics that are older
    than sealing or name nobody; labels of a shared trajectory that are sealed under another person's key alone; open
    traces that are not finished."""

    objects: set[str] = field(default_factory=set)
    """Paths of the objects with the content of the person's large records."""

    def merge(self, earlier: "Findings") -> None:
        """Add the findings of an interrupted attempt."""
        self.key_ids |= earlier.key_ids
        self.trajectories |= earlier.trajectories
        self.own_trajectories |= earlier.own_trajectories
        self.labels |= earlier.labels
        self.objects |= earlier.objects

    def pack(self) -> bytes:
        """Serialize, as JSON, the findings that need the keys."""
        return orjson.dumps(
            {
                "key_ids": sorted(self.key_ids),
                "trajectories": sorted(self.trajectories),
                "own": sorted(self.own_trajectories),
                "labels": sorted(self.labels),
                "objects": sorted(self.objects),
            }
        )

    @staticmethod
    def unpack(packed: bytes) -> "Findings":
        """Reverse `pack`."""
        stored = orjson.loads(packed)
        labels = {(partition, offset) for partition, offset in stored["labels"]}
        # Earlier versions did not store `own`: any of the trajectories may be one.
        own = set(stored.get("own", stored["trajectories"]))
        objects = set(stored.get("objects", ()))
        return Findings(set(stored["key_ids"]), set(stored["trajectories"]), own, labels, objects=objects)
