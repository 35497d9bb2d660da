"""When to look at which trajectory next. Pure: the time is passed in."""

import heapq
from collections.abc import Callable


class Deadlines:
    """The earliest deadline of each name; a later one is found out when the earlier one comes."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, bytes]] = []
        self._watched: dict[bytes, int] = {}

    def no_later(self, deadline_ms: int, name: bytes) -> None:
        """Looks at a name at this time, if not before."""
        if deadline_ms < self._watched.get(name, deadline_ms + 1):
            self.put_off(deadline_ms, name)

    def put_off(self, deadline_ms: int, name: bytes) -> None:
        """Looks at a name at this time, and not before."""
        self._watched[name] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, name))

    def overdue(self, now_ms: int, deadline_of: Callable[[bytes], int | None]) -> bytes | None:
        """The name whose time came first, if one's has; it stays until it is put off.

        Args:
            now_ms: the time.
            deadline_of: gives a name's deadline as of now; None: it needs no look any more.
        """
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, name = self._heap[0]
            if self._watched.get(name) == deadline_ms:
                later_ms = deadline_of(name)
                if later_ms is None:
                    del self._watched[name]
                elif later_ms <= now_ms:
                    return name
                else:
                    self._watched[name] = later_ms
                    heapq.heapreplace(self._heap, (later_ms, name))
                    continue
            heapq.heappop(self._heap)
        return None
