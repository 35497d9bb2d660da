"""A log and an index of it in memory, for searches of a person's records."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from stepstream.jobs.erasure.selection import IndexRow, Match, Place, Ranges, Selection
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import Event


@dataclass
class MemoryLog:
    """`Log` over events; `first` is the offset before which the records of all partitions are deleted."""

    events: list[Event]
    codec: Codec
    first: int = 0
    batch: int = 3
    indexed: int = 0
    """Number of records that `read_ranges` returned."""
    selected: int = 0
    """Number of records that `read_selected` returned."""

    def offset_ranges(self, topics: Sequence[str]) -> Ranges:
        """As `Log.offset_ranges`; every topic has partition 0."""
        ends: dict[Place, int] = {(topic, 0): 0 for topic in topics}
        for event in self.events:
            ends[event.topic, event.partition] = max(ends.get((event.topic, event.partition), 0), event.offset + 1)
        return {place: (min(self.first, end), end) for place, end in ends.items() if place[0] in topics}

    def read(self, topic: str) -> Iterator[Event]:
        """As `Log.read`."""
        yield from self._between(topic, self.offset_ranges([topic]))

    def read_ranges(self, ranges: Ranges) -> Iterator[tuple[list[Event], dict[Place, int]]]:
        """As `Log.read_ranges`."""
        ranges = {place: bounds for place, bounds in ranges.items() if bounds[0] < bounds[1]}
        reached = {place: first for place, (first, _) in ranges.items()}
        events = [event for topic in {topic for topic, _ in ranges} for event in self._between(topic, ranges)]
        for start in range(0, len(events), self.batch):
            batch = events[start : start + self.batch]
            for event in batch:
                reached[event.topic, event.partition] = event.offset + 1
            self.indexed += len(batch)
            yield batch, dict(reached)
        yield [], {place: end for place, (_, end) in ranges.items()}

    def read_selected(self, topic: str, selection: Selection) -> Iterator[Event]:
        """As `Log.read_selected`."""
        for run in selection.runs(topic):
            for event in self._between(topic, run):
                if selection.contains(topic, event.partition, event.offset):
                    self.selected += 1
                    yield event

    def _between(self, topic: str, ranges: Ranges) -> list[Event]:
        found = []
        for event in self.events:
            first, end = ranges.get((event.topic, event.partition), (0, 0))
            if event.topic == topic and max(first, self.first) <= event.offset < end:
                found.append(event)
        return found


@dataclass
class MemoryIndex:
    """`PersonIndex` in memory."""

    rows: list[IndexRow] = field(default_factory=list)

    def covered(self) -> Iterable[Match]:
        """As `PersonIndex.covered`."""
        return [Match(row.topic, row.partition, row.first, row.end, ()) for row in self.rows]

    def find(self, owners: Collection[int]) -> Iterator[list[Match]]:
        """As `PersonIndex.find`, one owner at a time."""
        for owner in owners:
            yield [Match(row.topic, row.partition, row.first, row.end, _offsets(row, owner)) for row in self.rows]

    def add(self, row: IndexRow) -> None:
        """As `PersonIndex.add`."""
        self.rows.append(row)

    def forget(self, place: Place, until: int) -> None:
        """As `PersonIndex.forget`."""
        self.rows = [row for row in self.rows if (row.topic, row.partition) != place or row.end > until]


def _offsets(row: IndexRow, owner: int) -> list[int]:
    return [offset for offset, each in zip(row.offsets, row.owners, strict=True) if each == owner]
