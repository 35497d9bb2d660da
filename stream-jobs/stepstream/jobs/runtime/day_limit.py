"""Bound the entries of a state that is kept in buckets by day: count them by day, and delete the oldest.

A key is a prefix, the day, and a hash, so entries of one day have no order. The oldest day loses a 256th part of its
entries at a time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.state import Changes, PartitionState

_COUNT = b"n"
_DAY_BYTES = 4
_DELETED_PER_TICK = 100_000


class CountedKind(NamedTuple):
    """A kind of entries that is counted."""

    name: str
    """Name in the metrics."""
    beside: Sequence[bytes] = ()
    """Prefixes of entries that are deleted with counted ones of the same day."""


class DayLimit:
    """Numbers of the entries of one partition by kind and day. A new fold reads them anew."""

    def __init__(self, state: PartitionState, kinds: Mapping[bytes, CountedKind], most: int) -> None:
        """Read the numbers, or count the entries of an earlier release.

        Args:
            state: of the partition.
            kinds: kinds by prefix; a prefix is one byte, not `n`.
            most: largest number of each kind.
        """
        self._state, self._kinds, self._most = state, kinds, most
        self._days = {kind: self._read(kind) for kind in kinds}
        self._added: Counter[tuple[bytes, bytes]] = Counter()

    def _read(self, kind: bytes) -> Counter[bytes]:
        stored = Counter({day: int(count) for day, count in self._state.scan(_COUNT + kind)})
        return stored or Counter(key[:_DAY_BYTES] for key, _ in self._state.scan(kind))

    def add(self, kind: bytes, day: bytes) -> None:
        """Count a new entry of a day."""
        self._added[kind, day] += 1

    def save(self, changes: Changes, out: Outputs) -> None:
        """Store the numbers that changed since the last call."""
        for (kind, day), count in self._added.items():
            self._set(kind, day, self._days[kind][day] + count, changes)
            out.count(metrics.STATE_ADDED.labels(self._kinds[kind].name), count)
        self._added.clear()

    def expire(self, kind: bytes, first: bytes, changes: Changes, out: Outputs) -> None:
        """Forget the numbers of days before `first`, whose entries are deleted."""
        for day in [day for day in self._days.get(kind, ()) if day < first]:
            out.count(metrics.STATE_REMOVED.labels(self._kinds[kind].name, "age"), self._days[kind][day])
            self._set(kind, day, 0, changes)

    @property
    def is_exceeded(self) -> bool:
        """True if entries have to be deleted."""
        return any(self._excess(kind) > 0 for kind in self._kinds)

    def trim(self, changes: Changes, out: Outputs) -> None:
        """Delete the oldest entries beyond the limit, `_DELETED_PER_TICK` and one part of a day at most."""
        for kind, (name, beside) in self._kinds.items():
            begin, removed = b"", 0
            while self._excess(kind) > 0 and removed < _DELETED_PER_TICK:
                oldest = next(self._state.scan(kind, begin), None)
                if oldest is None:  # an earlier release deleted entries without counting
                    for day in [*self._days[kind]]:
                        self._set(kind, day, 0, changes)
                    break
                day, part = oldest[0][:_DAY_BYTES], oldest[0][_DAY_BYTES]
                end = _after(day, part)
                count = sum(1 for _ in self._state.scan(kind + day + bytes([part])))
                for prefix in (kind, *beside):
                    changes.delete_range(prefix, prefix + end)
                self._set(kind, day, self._days[kind][day] - count, changes)
                out.count(metrics.STATE_REMOVED.labels(name, "cap"), count)
                begin, removed = end, removed + count

    def _excess(self, kind: bytes) -> int:
        return self._days[kind].total() - self._most

    def _set(self, kind: bytes, day: bytes, count: int, changes: Changes) -> None:
        if count > 0:
            self._days[kind][day] = count
            changes.put(_COUNT + kind + day, str(count).encode())
        else:
            self._days[kind].pop(day, None)
            changes.delete(_COUNT + kind + day)


def _after(day: bytes, part: int) -> bytes:
    """Return the key at which the next part of a day begins."""
    following = int.from_bytes(day + bytes([part])) + 1
    return following.to_bytes(_DAY_BYTES + 1)
