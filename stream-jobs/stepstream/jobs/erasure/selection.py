"""Select the offsets that a search reads: those that the index gives, and everything that it does not cover. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

Place = tuple[str, int]
"""Topic and partition."""
Ranges = dict[Place, tuple[int, int]]
"""First offset and end by place."""

_LONGEST_GAP = 500
"""Records that are fetched and skipped rather than looked up again."""


@dataclass(frozen=True, slots=True)
class IndexRow:
    """Owners of all records in a range of a partition. The row proves that the range is in the index."""

    topic: str
    partition: int
    first: int
    end: int
    """Offset after the last of the range."""
    offsets: Collection[int]
    """Offset of each entry."""
    owners: Collection[int]
    """Owner of each entry, by its hash: a record has an entry for each owner."""


@dataclass(frozen=True, slots=True)
class Match:
    """Records of some owners in an index row."""

    topic: str
    partition: int
    first: int
    end: int
    offsets: Collection[int]


class PersonIndex(Protocol):
    """An index of the log by owner. It may lack any of its rows; a row is there as a whole or not at all."""

    def covered(self) -> Iterable[Match]:
        """Return the ranges of all valid rows, without offsets."""
        ...

    def find(self, owners: Collection[int]) -> Iterator[list[Match]]:
        """Yield the records of owners, for a part of the owners at a time: a match for each valid row."""
        ...

    def add(self, row: IndexRow) -> None:
        """Store a row."""
        ...

    def forget(self, place: Place, until: int) -> None:
        """Delete a partition's rows that end at `until` or before it, and those that are not valid."""
        ...


def covered_until(bounds: Ranges, rows: Iterable[Match]) -> dict[Place, int]:
    """Return the offset up to which each partition is in the index without a gap, from its first record on."""
    until = {place: first for place, (first, _) in bounds.items()}
    for row in sorted(rows, key=lambda each: each.first):
        place = row.topic, row.partition
        if place in until and row.first <= until[place]:
            until[place] = max(until[place], row.end)
    return until


@dataclass(frozen=True, slots=True)
class Selection:
    """Offsets to read, by partition."""

    bounds: Ranges
    offsets: Mapping[Place, set[int]]
    rest: Mapping[Place, int]
    """Offset from which every record is read: the index does not cover the rest of the partition."""

    @staticmethod
    def of(bounds: Ranges, found: Iterable[list[Match]]) -> "Selection":
        """Return the offsets in any of the parts of `found`, and all that one of the parts does not cover."""
        offsets: dict[Place, set[int]] = {place: set() for place in bounds}
        rest = {place: end for place, (_, end) in bounds.items()}
        for matches in found:
            for place, until in covered_until(bounds, matches).items():
                rest[place] = min(rest[place], until)
            for match in matches:
                if (place := (match.topic, match.partition)) in bounds:
                    first, end = bounds[place]
                    offsets[place].update(offset for offset in match.offsets if first <= offset < end)
        return Selection(bounds, offsets, rest)

    def contains(self, topic: str, partition: int, offset: int) -> bool:
        """Return True if the record at an offset must be read."""
        place = topic, partition
        return offset >= self.rest[place] or offset in self.offsets[place]

    def size(self) -> int:
        """Return the number of offsets."""
        rests = ((place, end, self.rest[place]) for place, (_, end) in self.bounds.items())
        return sum(end - rest + sum(offset < rest for offset in self.offsets[place]) for place, end, rest in rests)

    def runs(self, topic: str) -> Iterator[Ranges]:
        """Yield ranges of a topic that hold all offsets, at most one of each partition at a time."""
        by_place = {place: list(self._runs(place)) for place in self.bounds if place[0] == topic}
        for number in range(max(map(len, by_place.values()), default=0)):
            yield {place: runs[number] for place, runs in by_place.items() if number < len(runs)}

    def _runs(self, place: Place) -> Iterator[tuple[int, int]]:
        rest, end = self.rest[place], self.bounds[place][1]
        ranges = [(offset, offset + 1) for offset in sorted(self.offsets[place]) if offset < rest]
        if rest < end:
            ranges.append((rest, end))
        first = until = -1
        for start, stop in ranges:
            if first >= 0 and start - until > _LONGEST_GAP:
                yield first, until
                first = -1
            first, until = (start if first < 0 else first), stop
        if first >= 0:
            yield first, until
