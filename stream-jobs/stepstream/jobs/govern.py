"""The `govern` job: what agents told becomes safe to learn from, or a dead letter.

Run it as `python -m stepstream.jobs.govern`. Reads `steps` and `feedback`; writes `governed-steps` and
`governed-feedback`. Checks and redaction are in `validation.py`, `governing.py` and `redaction.py`.
"""

import hashlib
import struct
import time
import uuid
from collections.abc import Callable
from typing import Any, ClassVar, cast

from stepstream.config import Settings
from stepstream.jobs import metrics
from stepstream.jobs.folding import FoldProcessor
from stepstream.jobs.governing import govern_feedback, govern_step
from stepstream.jobs.keys import pseudonym_key
from stepstream.jobs.outputs import Outputs
from stepstream.jobs.record import Record
from stepstream.jobs.redaction import Redactor
from stepstream.jobs.runner import Processor, run_job
from stepstream.jobs.state import Changes, PartitionState
from stepstream.jobs.validation import check_envelope, check_feedback, check_step
from stepstream.topics.events import Feedback, Step
from stepstream.topics.process import Stop, run

NAME = "govern"
VERSION = "1"
JOB = f"{NAME}@{VERSION}"
DAY_US = 24 * 3600 * 1_000_000

_SEEN, _CLEAN = b"e", b"p"
_DAY = struct.Struct(">I")
_INDEX = struct.Struct(">i")


class GovernFold:
    """One partition of steps and feedback.

    State, in buckets by day so that an old day is dropped at once: ids of the events seen, and which steps have a
    clean context (a step may keep the digest of its shared prefix only after one).
    """

    def __init__(self, redactor: Redactor, *, dedup_days: int, max_future_s: float, now_us: Callable[[], int]) -> None:
        self._redactor = redactor
        self._dedup_days = dedup_days
        self._max_future_us = int(max_future_s * 1e6)
        self._now_us = now_us
        self._newest_day = 0

    def apply(self, record: Record, event: dict[str, Any], changes: Changes, out: Outputs) -> None:
        """Checks, deduplicates, redacts and passes on one event."""
        check_envelope(event, record.key, self._now_us(), self._max_future_us)
        is_step = record.topic == "steps"
        if is_step:
            check_step(event)
        else:
            check_feedback(event)
        seen = _SEEN + _bucket(event) + uuid.UUID(event["event_id"]).bytes
        if changes.get(seen) is not None:
            out.count(metrics.DUPLICATES.labels(record.topic))
            return
        if event["consent"] == "none":
            out.count(metrics.WITHHELD.labels(record.topic))
        elif is_step:
            self._step(cast(Step, event), changes, out)
        else:
            self._feedback(cast(Feedback, event), out)
        # Last, so that an event whose result was refused is not taken for a duplicate when it is sent again.
        changes.put(seen, b"")
        self._newest_day = max(self._newest_day, event["occurred_at_us"] // DAY_US)

    def settle(self, changes: Changes, out: Outputs) -> None:
        """Nothing: each event stands for itself."""

    def due(self, now_ms: int) -> bool:
        """Once a day, there is an old day to drop."""
        return now_ms * 1000 // DAY_US > self._newest_day

    def tick(self, now_ms: int, changes: Changes, out: Outputs) -> None:
        """Drops the days before the window."""
        self._newest_day = now_ms * 1000 // DAY_US
        oldest = _DAY.pack(max(0, self._newest_day - self._dedup_days))
        for kind in (_SEEN, _CLEAN):
            changes.delete_range(kind, kind + oldest)

    def published(self, event: dict[str, Any], changes: Changes) -> None:
        """Nothing: results depend on the input alone."""

    def _step(self, step: Step, changes: Changes, out: Outputs) -> None:
        governed, clean = govern_step(JOB, step, self._prefix_clean(step, changes), self._redactor)
        assert governed["governed"] is not None
        out.emit("governed-steps", step["trajectory_id"], governed)
        for rule, times in governed["governed"]["redactions"].items():
            out.count(metrics.REDACTIONS.labels(rule), times)
        if clean:
            changes.put(_clean_key(step, step["step_index"], 0), b"")

    def _feedback(self, feedback: Feedback, out: Outputs) -> None:
        governed = govern_feedback(JOB, feedback, self._redactor)
        assert governed["governed"] is not None
        out.emit("governed-feedback", feedback["trajectory_id"], governed)
        for rule, times in governed["governed"]["redactions"].items():
            out.count(metrics.REDACTIONS.labels(rule), times)

    def _prefix_clean(self, step: Step, changes: Changes) -> bool:
        """Whether the step before is known to be clean; it may have happened on the day before."""
        before = step["step_index"] - 1
        return any(changes.get(_clean_key(step, before, days)) is not None for days in (0, 1))


def _bucket(event: Any, days_back: int = 0) -> bytes:
    """The day of the event by its own telling: the same for each copy of it."""
    return _DAY.pack(max(0, event["occurred_at_us"] // DAY_US - days_back))


def _clean_key(step: Step, index: int, days_back: int) -> bytes:
    trajectory = hashlib.blake2b(step["trajectory_id"].encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return _CLEAN + _bucket(step, days_back) + trajectory + _INDEX.pack(index)


class Govern:
    """The job for `FoldProcessor`."""

    name: ClassVar = NAME
    version: ClassVar = VERSION
    inputs: ClassVar[tuple[str, ...]] = ("steps", "feedback")
    remembers: ClassVar[str | None] = None

    def __init__(self, settings: Settings) -> None:
        self.max_event_bytes: int | None = settings.govern.max_event_bytes
        self._settings = settings.govern
        self._redactor = Redactor(pseudonym_key(settings))

    def fold(self, state: PartitionState) -> GovernFold:
        """One partition."""
        return GovernFold(
            self._redactor,
            dedup_days=self._settings.dedup_days,
            max_future_s=self._settings.max_future_s,
            now_us=lambda: time.time_ns() // 1000,
        )


def main(settings: Settings, stop: Stop) -> None:
    """Runs the job until asked to stop."""
    job = Govern(settings)

    def make(settings: Settings, abandoned: Callable[[], bool]) -> Processor:
        return FoldProcessor(settings, job, abandoned)

    run_job(settings, stop, NAME, job.inputs, make)


if __name__ == "__main__":
    run(NAME, main)
