"""A virtual clock, and processes that share the cores of a machine on it."""

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count

Then = Callable[[], object]


class Clock:
    """Calls what is due, in order of time, and of asking where times are equal. Seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = count()
        self._due: list[tuple[float, int, Then]] = []

    def after(self, seconds: float, then: Then) -> None:
        """Calls `then` when so many seconds have passed."""
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), then))

    def run(self, over: Callable[[], bool], deadline_s: float) -> bool:
        """Runs until `over`; False if nothing is left to do or the deadline comes first."""
        while not over():
            if not self._due or self._due[0][0] > deadline_s:
                return False
            self.now, _, then = heapq.heappop(self._due)
            then()
        return True


class Cores:
    """Some cores that busy processes share evenly: each runs on one core at most."""

    def __init__(self, clock: Clock, cores: float) -> None:
        self._clock, self._cores = clock, cores
        self._left: dict[int, tuple[float, Then]] = {}
        """CPU seconds still to do, and what follows, by number of the piece of work."""
        self._numbers = count()
        self._since = 0.0
        self._plan = 0
        self.busy_s = 0.0
        """CPU seconds done so far."""

    def work(self, seconds: float, then: Then) -> None:
        """Does so many CPU seconds of work for one process, then calls `then`."""
        self._settle()
        self._left[next(self._numbers)] = (seconds, then)
        self._look_ahead()

    def _rate(self) -> float:
        return min(1.0, self._cores / len(self._left))

    def _settle(self) -> None:
        """Brings what is left up to now."""
        passed, self._since = self._clock.now - self._since, self._clock.now
        if self._left and passed:
            done = passed * self._rate()
            self.busy_s += done * len(self._left)
            self._left = {number: (left - done, then) for number, (left, then) in self._left.items()}

    def _look_ahead(self) -> None:
        """Plans for the first piece of work to end; what was planned before no longer counts."""
        self._plan += 1
        if self._left:
            plan = self._plan
            number = min(self._left, key=lambda n: (self._left[n][0], n))
            self._clock.after(max(0.0, self._left[number][0]) / self._rate(), lambda: self._end(number, plan))

    def _end(self, number: int, plan: int) -> None:
        if plan != self._plan:
            return
        self._settle()
        _, then = self._left.pop(number)
        self._look_ahead()
        then()


class Server:
    """A process that does one piece of work at a time, in the order in which it was asked."""

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._waiting: deque[tuple[float, Then]] = deque()
        self._busy = False
        self.busy_s = 0.0
        """CPU seconds asked of it so far."""

    def do(self, seconds: float, then: Then) -> None:
        """Works for so many CPU seconds when its turn comes, then calls `then`."""
        self.busy_s += seconds
        self._waiting.append((seconds, then))
        self._next()

    def _next(self) -> None:
        if self._busy or not self._waiting:
            return
        self._busy = True
        seconds, then = self._waiting.popleft()
        self._cores.work(seconds, lambda: self._done(then))

    def _done(self, then: Then) -> None:
        self._busy = False
        then()
        self._next()
