"""Follow the topic `worker-status`, and keep the pool of workers up to date."""

import asyncio
import logging
import time
from typing import Any

from stepstream.config import Settings
from stepstream.services.gateway.membership import Membership
from stepstream.services.gateway.worker_pool import WorkerPool
from stepstream.topics.catalogue import WORKER_STATUS
from stepstream.topics.events import WorkerStatus
from stepstream.topics.ids import now_us
from stepstream.topics.table import Table

log = logging.getLogger(__name__)

_CHECK_S = 0.5
"""Interval of checks for silent workers."""


class WorkerFollower:
    """Follows the topic in a thread and changes the pool in the event loop. Create it inside the loop, and close it."""

    def __init__(self, settings: Settings, pool: WorkerPool) -> None:
        """Start to follow; until every present record has been read, the pool keeps the workers of the settings."""
        self._membership = Membership(settings.inference.status_every_s)
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._announced = False
        self._names: list[str] = []
        self._table = Table(settings, WORKER_STATUS)
        self._table.on_change(self._receive)
        for worker_id, status in self._table.items().items():  # read before `on_change`
            self._apply(worker_id, status, self._table.written_us(worker_id), time.monotonic(), now_us())
        self._timer = self._loop.call_later(_CHECK_S, self._check)

    def close(self) -> None:
        """Stop to follow."""
        self._timer.cancel()
        self._table.close()

    def _receive(self, worker_id: str, status: Any) -> None:
        written_us = self._table.written_us(worker_id)
        self._loop.call_soon_threadsafe(self._apply, worker_id, status, written_us, time.monotonic(), now_us())

    def _apply(
        self, worker_id: str, status: WorkerStatus | None, written_us: int | None, now: float, wall_us: int
    ) -> None:
        if self._membership.apply(worker_id, status, now, wall_us, written_us) and self._announced:
            self._announce()
        if status is not None:
            self._pool.note_load(status["url"].rstrip("/"), status["requests_in_flight"])

    def _check(self) -> None:
        self._timer = self._loop.call_later(_CHECK_S, self._check)
        is_ready = not self._announced and self._table.current and bool(self._membership.workers())
        if (self._membership.drop_silent(time.monotonic()) and self._announced) or is_ready:
            self._announce()

    def _announce(self) -> None:
        workers = self._membership.workers()
        self._pool.announce(workers, self._membership.models)
        names = sorted(f"{worker.url} ({worker.model})" for worker in workers)
        if names != self._names:
            log.info("inference workers: %s", ", ".join(names) or "none")
        self._announced, self._names = True, names
