"""Which upstream a call goes to: the healthy one with the fewest calls in flight. Pure: time is passed in."""

from collections.abc import Sequence
from dataclasses import dataclass

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


@dataclass(slots=True)
class Upstream:
    """One inference worker, as the calls to it show it. Times are seconds of a monotonic clock."""

    url: str
    in_flight: int = 0
    chosen: int = 0
    failures: int = 0
    """Failures in a row; those during a pause, of calls begun before it, count once."""
    paused_until: float = 0.0
    fault: str = ""

    def succeeded(self) -> None:
        """It answered."""
        self.failures = 0
        self.paused_until = 0.0
        self.fault = ""

    def failed(self, fault: str, now: float) -> None:
        """It did not: leave it alone for a while, twice as long after each further failure, up to a second."""
        self.fault = fault
        if now >= self.paused_until:
            self.paused_until = now + min(FIRST_PAUSE_S * 2**self.failures, LONGEST_PAUSE_S)
            self.failures += 1


class Pool:
    """All upstreams."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.upstreams = [Upstream(url.rstrip("/")) for url in urls]

    def choose(self, now: float) -> Upstream | None:
        """The one for the next call; None while all are paused."""
        best: Upstream | None = None
        for upstream in self.upstreams:
            if upstream.paused_until <= now and (
                best is None or (upstream.in_flight, upstream.chosen) < (best.in_flight, best.chosen)
            ):
                best = upstream
        if best is not None:
            best.chosen += 1
        return best

    def next_try(self) -> float:
        """When the first pause ends."""
        return min(upstream.paused_until for upstream in self.upstreams)

    def faults(self) -> str:
        """What is wrong with each, for an error message."""
        return "; ".join(f"{u.url}: {u.fault or 'no answer'}" for u in self.upstreams)
