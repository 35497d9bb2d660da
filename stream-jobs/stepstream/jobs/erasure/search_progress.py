"""Report how much of the log a search has read, and the time left."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from stepstream.topics.consumer import Event

_CHECKED_EVERY = 1000
_REPORTED_EVERY_S = 5.0

Say = Callable[[str], None]


class SearchProgress:
    """Progress over ranges of offsets. Markers of transactions count as records."""

    def __init__(
        self,
        ranges: Mapping[tuple[str, int], tuple[int, int]],
        say: Say,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin.

        Args:
            ranges: first offset and end of each (topic, partition) to read.
            say: receives a line every five seconds, and one at the end.
            now_s: the clock, in seconds.
        """
        self._ranges, self._say, self._now_s = ranges, say, now_s
        self._read: dict[tuple[str, int], int] = {}
        """Next offset by partition."""
        self._total = sum(max(0, end - first) for first, end in ranges.values())
        self._began_s = self._said_s = now_s()

    def follow(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield the events of a topic, and report."""
        for number, event in enumerate(events, 1):
            self._read[event.topic, event.partition] = event.offset + 1
            yield event
            if number % _CHECKED_EVERY == 0 and self._now_s() - self._said_s >= _REPORTED_EVERY_S:
                self._report()

    def end(self) -> None:
        """Report the end: every range is read."""
        self._say(f"searched {self._total:,} records in {self._now_s() - self._began_s:,.0f} s")

    def _report(self) -> None:
        now_s = self._said_s = self._now_s()
        read = sum(min(at, self._ranges[place][1]) - self._ranges[place][0] for place, at in self._read.items())
        left_s = (now_s - self._began_s) * (self._total - read) / max(1, read)
        self._say(
            f"searched {read:,} of {self._total:,} records ({read / max(1, self._total):.0%}), {left_s:,.0f} s left"
        )
