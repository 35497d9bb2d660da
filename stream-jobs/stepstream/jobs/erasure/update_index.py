"""Bring the index of the log by owner to the present end of the log."""

from functools import lru_cache

from stepstream.jobs.erasure.owner_hashes import SubjectOf, owners_of
from stepstream.jobs.erasure.read_log import INDEXED, Log
from stepstream.jobs.erasure.search_progress import Say, SearchProgress
from stepstream.jobs.erasure.selection import IndexRow, Match, PersonIndex, Place, Ranges, covered_until

_RECORDS_IN_A_ROW = 10_000
_PERSONS = 100_000
"""Digests that are held in memory."""


def update_index(log: Log, index: PersonIndex, subject_of: SubjectOf, say: Say) -> Ranges:
    """Add the records that the index does not cover, and return the first offset and the end of each partition.

    Raises:
        KafkaException: a topic does not exist, or no broker answers.
        ClickHouseError: the index is unavailable.
    """
    covered = list(index.covered())  # before the ends: another process may add rows meanwhile
    bounds = log.offset_ranges(INDEXED)
    until = covered_until(bounds, _forget_wrong(index, covered, bounds))
    missing = {place: (until[place], end) for place, (_, end) in bounds.items()}
    progress = SearchProgress(missing, say)
    subject = lru_cache(_PERSONS)(subject_of)
    rows = {place: _RowInProgress(place, first) for place, (first, _) in missing.items()}
    for events, reached in log.read_ranges(missing):
        for event in progress.follow(events):
            rows[event.topic, event.partition].add(event.offset, owners_of(event, subject))
        for place, end in reached.items():
            row, wanted_end = rows[place], missing[place][1]
            if row.records >= _RECORDS_IN_A_ROW or row.first < wanted_end <= end:
                row.store(index, end)
    progress.end()
    return bounds


def _forget_wrong(index: PersonIndex, covered: list[Match], bounds: Ranges) -> list[Match]:
    """Delete rows about records that the log has no more, and return the others.

    A log that ends before its index has lost records, and may have others at their offsets by now.
    """
    by_place: dict[Place, list[Match]] = {}
    for row in covered:
        by_place.setdefault((row.topic, row.partition), []).append(row)
    valid = []
    for place, rows in by_place.items():
        first, end = bounds.get(place, (0, 0))
        newest = max(row.end for row in rows)
        until = newest if newest > end else first
        if any(row.end <= until for row in rows):
            index.forget(place, until)
        valid += [row for row in rows if row.end > until]
    return valid


class _RowInProgress:
    """The next row of a partition."""

    def __init__(self, place: Place, first: int) -> None:
        self._place, self.first = place, first
        self._offsets: list[int] = []
        self._owners: list[int] = []
        self.records = 0

    def add(self, offset: int, owners: set[int]) -> None:
        """Add a record."""
        self.records += 1
        for owner in owners:
            self._offsets.append(offset)
            self._owners.append(owner)

    def store(self, index: PersonIndex, end: int) -> None:
        """Store the row of the records before `end`, and begin another."""
        index.add(IndexRow(*self._place, self.first, end, self._offsets, self._owners))
        self.first, self._offsets, self._owners, self.records = end, [], [], 0
