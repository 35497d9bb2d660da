"""Stops a job loudly when too much of what it reads cannot be used, and not for what one tenant alone sends."""

import logging
from collections import Counter, deque
from collections.abc import Mapping

from stepstream.core.process import Fatal

log = logging.getLogger(__name__)

WINDOW = 1_000
REMEMBERED = 10 * WINDOW
"""Records among which it is looked for what others sent: a flood may fill the window alone."""
ENOUGH = 10
"""Records of others from which on they show that the job itself is sound."""


class DeadLetterShare:
    """The share of dead letters among the last 1,000 records, and who sent them.

    Where all but one tenant's records can be used, that tenant's input is to blame: it becomes dead letters, the log
    says so, and the others' goes on. Where nobody else's is there, or it cannot be used either, the job stops.
    """

    def __init__(self, limit: float) -> None:
        """`limit` is the largest share tolerated; 1 tolerates everything."""
        self._limit = limit
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        self._dead = 0
        self._senders: deque[tuple[str, bool]] = deque(maxlen=REMEMBERED)
        self._silent_for = 0

    def note(self, used: Mapping[str, int], refused: Mapping[str, int]) -> None:
        """Counts a batch.

        Args:
            used: records that could be used, by tenant; those that name none under the empty name.
            refused: those that became dead letters, likewise; of what cannot be read, the tenant is not known.

        Raises:
            Fatal: the window is full, the share is above the limit, and it is not one tenant's doing.
        """
        for counts, dead in ((used, False), (refused, True)):
            for tenant, times in counts.items():
                for _ in range(times):
                    if len(self._recent) == WINDOW:
                        self._dead -= self._recent[0]
                    self._recent.append(dead)
                    self._dead += dead
                    self._senders.append((tenant, dead))
                    self._silent_for -= 1
        if len(self._recent) < WINDOW or self._dead <= self._limit * WINDOW:
            return
        worst = self._only_culprit()
        if worst is None:
            raise Fatal(
                f"{self._dead} of the last {WINDOW} records were dead letters, more than jobs.dead_letter_share = "
                f"{self._limit:g} allows: look at the dead-letters topic, mend the producer, or raise "
                "STEPSTREAM_JOBS_DEAD_LETTER_SHARE"
            )
        if self._silent_for <= 0:
            self._silent_for = WINDOW
            log.error(
                "%d of the last %d records were dead letters, nearly all of %s; others' can be used and go on: look at "
                "the dead-letters topic and mend that producer",
                self._dead,
                WINDOW,
                f"tenant {worst!r}" if worst else "what names no tenant or cannot be read",
            )

    def _only_culprit(self) -> str | None:
        """The tenant without whose records the share would be within the limit; None: it is not one's doing."""
        dead = Counter(tenant for tenant, refused in self._senders if refused)
        worst = max(dead, key=lambda tenant: (dead[tenant], tenant))
        named = Counter(tenant for tenant, _ in self._senders if tenant not in ("", worst))
        sound = named.total() >= ENOUGH and sum(dead[tenant] for tenant in named) <= self._limit * named.total()
        return worst if sound else None
