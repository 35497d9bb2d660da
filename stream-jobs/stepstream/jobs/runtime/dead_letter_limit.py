"""Stop a job when too many of its records are dead letters, unless a single tenant sends them."""

import logging
from collections import Counter, deque
from collections.abc import Mapping

from stepstream.core.process import Fatal

log = logging.getLogger(__name__)

WINDOW = 1_000
HISTORY = 10 * WINDOW
"""Records that are searched for those of other tenants: one tenant may fill the whole window."""
MIN_FROM_OTHERS = 10
"""Fewest records of other tenants that can prove the job itself sound."""


class DeadLetterLimit:
    """Limits the share of dead letters among the last 1,000 records.

    If one tenant alone exceeds the limit, its records become dead letters, the log reports it, and the job continues.
    If other tenants' records fail too, or there are too few of them, the job stops.
    """

    def __init__(self, limit: float) -> None:
        """`limit` is the largest allowed share, from 0 to 1; 1 allows everything."""
        self._limit = limit
        self._window: deque[bool] = deque(maxlen=WINDOW)
        self._dead_in_window = 0
        self._history: deque[tuple[str, bool]] = deque(maxlen=HISTORY)
        self._records_until_next_log = 0

    def add(self, valid: Mapping[str, int], dead_lettered: Mapping[str, int]) -> None:
        """Count a batch.

        Args:
            valid: valid records by tenant; the empty name counts records without a tenant.
            dead_lettered: dead letters by tenant; the empty name counts also records that cannot be decoded.

        Raises:
            Fatal: the window is full, its share exceeds the limit, and more than one tenant is responsible.
        """
        for counts, is_dead in ((valid, False), (dead_lettered, True)):
            for tenant, count in counts.items():
                for _ in range(count):
                    self._add_record(tenant, is_dead)
        if len(self._window) < WINDOW or self._dead_in_window <= self._limit * WINDOW:
            return
        responsible = self._responsible_tenant()
        if responsible is None:
            raise Fatal(
                f"{self._dead_in_window} of the last {WINDOW} records were dead letters; jobs.dead_letter_share = "
                f"{self._limit:g} allows fewer: read the dead-letters topic, fix the producer, or raise "
                "STEPSTREAM_JOBS_DEAD_LETTER_SHARE"
            )
        if self._records_until_next_log <= 0:
            self._records_until_next_log = WINDOW
            log.error(
                "%d of the last %d records were dead letters, nearly all from %s; other tenants continue: read the "
                "dead-letters topic and fix that producer",
                self._dead_in_window,
                WINDOW,
                f"tenant {responsible!r}" if responsible else "records that name no tenant or cannot be decoded",
            )

    def _add_record(self, tenant: str, is_dead: bool) -> None:
        if len(self._window) == WINDOW:
            self._dead_in_window -= self._window[0]
        self._window.append(is_dead)
        self._dead_in_window += is_dead
        self._history.append((tenant, is_dead))
        self._records_until_next_log -= 1

    def _responsible_tenant(self) -> str | None:
        """Return the tenant without whom the share would be within the limit; None: there is no single one."""
        dead = Counter(tenant for tenant, is_dead in self._history if is_dead)
        worst = max(dead, key=lambda tenant: (dead[tenant], tenant))
        others = Counter(tenant for tenant, _ in self._history if tenant not in ("", worst))
        dead_of_others = sum(dead[tenant] for tenant in others)
        is_sound = others.total() >= MIN_FROM_OTHERS and dead_of_others <= self._limit * others.total()
        return worst if is_sound else None
