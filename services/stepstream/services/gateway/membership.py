"""Fold the records of `worker-status` into the set of present workers. Pure: time is passed in.

A worker leaves when it says that it stops, and when it has been silent for `SILENT_INTERVALS` of its status intervals.
Times are those of arrival, and those at which the broker wrote the statuses, since clocks of machines differ. Silence
of every worker means that Kafka cannot be read, not that all have left: then the last known set stays, and failing
calls show which worker is away.
"""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from stepstream.services.gateway.worker_pool import AnnouncedWorker
from stepstream.topics.events import WorkerStatus

SILENT_INTERVALS = 3
LONGEST_INTERVAL_S = 60.0
"""Bound of an observed interval."""
RECENT_S = 600.0
"""Age above which a record is ignored at its arrival: its worker left before this gateway began, or a clock is behind.

A worker's second status tells: records of the past arrive faster than they were written.
"""
_GAPS = 3
_SCHEMES = ("http", "https")


@dataclass(slots=True)
class _Member:
    status: WorkerStatus
    worker: AnnouncedWorker
    at_us: int
    """Time at which the status was written."""
    arrived: float
    gaps: list[float] = field(default_factory=list)
    """Newest intervals between statuses."""


@dataclass(slots=True)
class _OldStatuses:
    """Statuses of a worker that were old at their arrival, and equally so. Times in seconds."""

    age: float
    begun: float
    """Arrival of the first."""
    arrived: float
    """Arrival of the last."""


class Membership:
    """The workers that announced themselves."""

    def __init__(self, interval_s: float) -> None:
        """`interval_s`: expected interval of statuses; a worker with a longer one is waited for accordingly."""
        self._interval_s = interval_s
        self._members: dict[str, _Member] = {}
        self._heard = float("-inf")
        self._old: dict[str, _OldStatuses] = {}
        self.models: set[str] = set()
        """Every model that a worker served."""

    def workers(self) -> list[AnnouncedWorker]:
        """Return the present workers, one for each address: the one that was heard last."""
        by_url = {}
        for member in sorted(self._members.values(), key=lambda member: member.arrived):
            by_url[member.worker.url] = member.worker
        return list(by_url.values())

    def apply(
        self, worker_id: str, status: WorkerStatus | None, now: float, wall_us: int, written_us: int | None = None
    ) -> bool:
        """Apply a record; return True if the set or a worker's description changed.

        Args:
            worker_id: key of the record.
            status: None: the key was deleted.
            now: time of arrival in seconds, monotonic clock.
            wall_us: the same in microseconds since the Unix epoch.
            written_us: time at which the broker wrote the record; None: unknown, so that the time in it counts.
        """
        if status is None:
            return self._remove(worker_id)
        known = self._members.get(worker_id)
        at_us = status["occurred_at_us"] if written_us is None else written_us
        if known is not None and (at_us < known.at_us or status["event_id"] == known.status["event_id"]):
            return False  # the topic is read again
        age_s = (wall_us - at_us) / 1e6
        if age_s > RECENT_S and status["state"] == "stopping":
            return self._remove(worker_id)
        if (age_s > RECENT_S and not self._is_behind(worker_id, age_s, now)) or not _is_address(status["url"]):
            return False
        if now - self._heard > SILENT_INTERVALS * self._interval_s:
            for member in self._members.values():  # Kafka can be read again: give each the time to be heard
                member.arrived = now
        self._heard = now
        self.models.add(status["model"])
        if status["state"] == "stopping":
            return self._remove(worker_id)
        worker = announced_worker(status)
        gaps: list[float] = []
        if known is not None:
            gap = (at_us - known.at_us) / 1e6
            gaps = [*known.gaps, min(gap, LONGEST_INTERVAL_S)][-_GAPS:]
        self._members[worker_id] = _Member(status, worker, at_us, now, gaps)
        return known is None or known.worker != worker

    def drop_silent(self, now: float) -> bool:
        """Drop the silent workers if others are heard; return True if there were any."""
        self._old = {worker_id: old for worker_id, old in self._old.items() if now - old.arrived <= RECENT_S}
        silent = [
            worker_id
            for worker_id, member in self._members.items()
            if now - member.arrived > self._patience_s(member) >= now - self._heard
        ]
        for worker_id in silent:
            del self._members[worker_id]
        return bool(silent)

    def _is_behind(self, worker_id: str, age_s: float, now: float) -> bool:
        """Return True if a worker's old statuses arrive as fast as they are written: only its clock is behind."""
        tolerance_s = self._interval_s / 2
        old = self._old.get(worker_id)
        if old is None or abs(age_s - old.age) > tolerance_s:
            old = self._old[worker_id] = _OldStatuses(age_s, now, now)
        old.arrived = now
        return now - old.begun >= tolerance_s

    def _remove(self, worker_id: str) -> bool:
        self._old.pop(worker_id, None)
        return self._members.pop(worker_id, None) is not None

    def _patience_s(self, member: _Member) -> float:
        return SILENT_INTERVALS * max(self._interval_s, *member.gaps, 0.0)


def _is_address(url: str) -> bool:
    """Return True if calls can be sent to a base address."""
    try:
        parts = urlsplit(url)
        return parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def announced_worker(status: WorkerStatus) -> AnnouncedWorker:
    """Return the description in a status."""
    return AnnouncedWorker(
        url=status["url"].rstrip("/"),
        model=status["model"],
        state=status["state"],
        ready=status["version"] is not None or bool(status["tracks"]),
        capacity=status["capacity"],
        tracks={served["track"]: served["served_name"] for served in status["tracks"]},
    )
