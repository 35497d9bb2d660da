"""Stops a job loudly when too much of what it reads cannot be used."""

from collections import deque

from stepstream.topics.process import Fatal

WINDOW = 1_000


class DeadLetterShare:
    """The share of dead letters among the last 1,000 records."""

    def __init__(self, limit: float) -> None:
        """`limit` is the largest share tolerated; 1 tolerates everything."""
        self._limit = limit
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        self._dead = 0

    def note(self, used: int, refused: int) -> None:
        """Counts a batch.

        Raises:
            Fatal: the window is full and the share is above the limit.
        """
        for dead in (*[False] * used, *[True] * refused):
            if len(self._recent) == WINDOW:
                self._dead -= self._recent[0]
            self._recent.append(dead)
            self._dead += dead
        if len(self._recent) == WINDOW and self._dead > self._limit * WINDOW:
            raise Fatal(
                f"{self._dead} of the last {WINDOW} records were dead letters, more than jobs.dead_letter_share = "
                f"{self._limit:g} allows: look at the dead-letters topic, mend the producer, or raise "
                "STEPSTREAM_JOBS_DEAD_LETTER_SHARE"
            )
