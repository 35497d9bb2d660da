"""Simulate time, and processes that share the cores of a machine."""

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count

Callback = Callable[[], object]


class Clock:
    """Virtual clock in seconds; calls callbacks in order of time, and of scheduling for equal times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = count()
        self._due: list[tuple[float, int, Callback]] = []

    def after(self, seconds: float, then: Callback) -> None:
        """Call `then` after `seconds`."""
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), then))

    def run(self, over: Callable[[], bool], deadline_s: float) -> bool:
        """Run until `over` returns True; return False if nothing is scheduled or the deadline comes first."""
        while not over():
            if not self._due or self._due[0][0] > deadline_s:
                return False
            self.now, _, then = heapq.heappop(self._due)
            then()
        return True


class Cores:
    """Cores that busy processes share evenly; each process uses at most one core."""

    def __init__(self, clock: Clock, cores: float) -> None:
        self._clock, self._cores = clock, cores
        self._left: dict[int, tuple[float, Callback]] = {}
        """Remaining CPU seconds and callback by number of the work item."""
        self._numbers = count()
        self._since = 0.0
        self._plan = 0
        self.busy_s = 0.0
        """CPU seconds done."""

    def work(self, seconds: float, then: Callback) -> None:
        """Do `seconds` of CPU work for one process, then call `then`."""
        self._advance()
        self._left[next(self._numbers)] = (seconds, then)
        self._schedule_next()

    def _rate(self) -> float:
        return min(1.0, self._cores / len(self._left))

    def _advance(self) -> None:
        """Update the remaining work to the current time."""
        passed, self._since = self._clock.now - self._since, self._clock.now
        if self._left and passed:
            done = passed * self._rate()
            self.busy_s += done * len(self._left)
            self._left = {number: (left - done, then) for number, (left, then) in self._left.items()}

    def _schedule_next(self) -> None:
        """Schedule the end of the first work item; earlier plans become void."""
        self._plan += 1
        if self._left:
            plan = self._plan
            number = min(self._left, key=lambda n: (self._left[n][0], n))
            self._clock.after(max(0.0, self._left[number][0]) / self._rate(), lambda: self._end(number, plan))

    def _end(self, number: int, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        _, then = self._left.pop(number)
        self._schedule_next()
        then()


class Server:
    """A process that does one work item at a time, in order."""

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._waiting: deque[tuple[float, Callback]] = deque()
        self._busy = False
        self.busy_s = 0.0
        """CPU seconds requested."""

    def do(self, seconds: float, then: Callback) -> None:
        """Queue `seconds` of CPU work, then call `then`."""
        self.busy_s += seconds
        self._waiting.append((seconds, then))
        self._next()

    def _next(self) -> None:
        if self._busy or not self._waiting:
            return
        self._busy = True
        seconds, then = self._waiting.popleft()
        self._cores.work(seconds, lambda: self._done(then))

    def _done(self, then: Callback) -> None:
        self._busy = False
        then()
        self._next()
