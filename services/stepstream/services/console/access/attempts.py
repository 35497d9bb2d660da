"""Slow down who guesses passwords. Pure: the time is an argument."""

from collections import OrderedDict
from threading import Lock

FREE_ATTEMPTS = 5
_LONGEST_S = 900.0
_KEPT = 10_000


class Attempts:
    """Counts failed logins of each name; after five, each failure doubles the time to wait, up to 15 minutes.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._lock = Lock()

    def wait_s(self, name: str, now: float) -> float:
        """Return the seconds until the name may be tried again."""
        with self._lock:
            _, until = self._failures.get(name, (0, now))
        return max(0.0, until - now)

    def fail(self, name: str, now: float) -> None:
        """Count a failure."""
        with self._lock:
            count = self._failures.pop(name, (0, 0.0))[0] + 1
            # As integers: a float overflows after a thousand failures.
            wait = min(_LONGEST_S, 2 ** (count - FREE_ATTEMPTS)) if count >= FREE_ATTEMPTS else 0.0
            self._failures[name] = (count, now + wait)
            while len(self._failures) > _KEPT:
                self._failures.popitem(last=False)

    def succeed(self, name: str) -> None:
        """Forget the failures of a name."""
        with self._lock:
            self._failures.pop(name, None)
