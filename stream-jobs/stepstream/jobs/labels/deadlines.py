"""Find the name whose deadline has passed first. Pure: callers pass the time."""

import heapq
from collections.abc import Callable


class Deadlines:
    """One deadline for each name.

    A deadline that has moved to later is noticed when the earlier one passes.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, bytes]] = []
        self._deadlines: dict[bytes, int] = {}

    def schedule(self, deadline_ms: int, name: bytes) -> None:
        """Set the deadline of a name, unless it has an earlier one."""
        if deadline_ms < self._deadlines.get(name, deadline_ms + 1):
            self.reschedule(deadline_ms, name)

    def reschedule(self, deadline_ms: int, name: bytes) -> None:
        """Replace the deadline of a name."""
        self._deadlines[name] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, name))

    def next_overdue(self, now_ms: int, deadline_of: Callable[[bytes], int | None]) -> bytes | None:
        """Return the name with the earliest passed deadline; None: none has passed.

        The name stays until `reschedule`.

        Args:
            now_ms: the time.
            deadline_of: returns the current deadline of a name; None: it has none any more.
        """
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, name = self._heap[0]
            if self._deadlines.get(name) == deadline_ms:
                current_ms = deadline_of(name)
                if current_ms is None:
                    del self._deadlines[name]
                elif current_ms <= now_ms:
                    return name
                else:
                    self._deadlines[name] = current_ms
                    heapq.heapreplace(self._heap, (current_ms, name))
                    continue
            heapq.heappop(self._heap)
        return None
