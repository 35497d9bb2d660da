"""Hold the indices of a trajectory's steps as ranges: constant size for steps without gaps. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator


class IndexSet:
    """Set of indices from 0 on that only grows."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """`ranges` as `ranges()` returns them."""
        self._begins: list[int] = []
        self._ends: list[int] = []
        for begin, end in ranges:
            self._begins.append(begin)
            self._ends.append(end)
        self._count = sum(self._ends) - sum(self._begins)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, index: int) -> bool:
        place = bisect_right(self._begins, index) - 1
        return place >= 0 and index < self._ends[place]

    def __iter__(self) -> Iterator[int]:
        for begin, end in self.ranges():
            yield from range(begin, end)

    @property
    def highest(self) -> int:
        """Highest index; -1: none."""
        return self._ends[-1] - 1 if self._ends else -1

    def first_free(self, start: int) -> int:
        """Return the lowest index from `start` on that is not in the set."""
        place = bisect_right(self._begins, start) - 1
        return max(start, self._ends[place]) if place >= 0 else start

    def add(self, index: int) -> None:
        """Add an index."""
        if index in self:
            return
        self._count += 1
        place = bisect_right(self._begins, index)
        follows = place > 0 and self._ends[place - 1] == index
        precedes = place < len(self._begins) and self._begins[place] == index + 1
        if follows and precedes:
            self._ends[place - 1] = self._ends.pop(place)
            del self._begins[place]
        elif follows:
            self._ends[place - 1] = index + 1
        elif precedes:
            self._begins[place] = index
        else:
            self._begins.insert(place, index)
            self._ends.insert(place, index + 1)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the indices as ranges [begin, end), ascending."""
        return list(zip(self._begins, self._ends, strict=True))
