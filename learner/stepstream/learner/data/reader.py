"""Read and decode labelled trajectories ahead of the learner, in a thread, while it trains."""

import hashlib
import logging
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

from stepstream.config import KafkaSettings
from stepstream.core.process import Stop
from stepstream.jobs.runtime.log_reader import LogReader
from stepstream.jobs.runtime.retry import RetryingCodec
from stepstream.learner import JOB, metrics
from stepstream.learner.data.attempt import Attempt, LogPosition, attempt_of, rejected_attempt
from stepstream.learner.data.sequences import Invalid, Limits
from stepstream.topics.catalogue import ALARMS, CHECKPOINTS, LABELED_TRAJECTORIES, TRAINING_DECISIONS
from stepstream.topics.codec import Codec, CodecError
from stepstream.topics.consumer import Event, EventConsumer
from stepstream.topics.events import Alarm, Checkpoint, DeadLetter, TrainingDecision, new_dead_letter
from stepstream.topics.ids import derived_id, now_us

log = logging.getLogger(__name__)

_BATCH = 200
_BATCHES_AHEAD = 50


@dataclass(frozen=True, slots=True)
class Arrival:
    """One record: an attempt, a dead letter (with its attempt, if the record could be decoded), or a checkpoint."""

    position: LogPosition
    attempt: Attempt | None = None
    dead_letter: DeadLetter | None = None
    checkpoint: Checkpoint | None = None

    @property
    def size_bytes(self) -> int:
        """Memory of its tokens."""
        return self.attempt.size_bytes if self.attempt else 0


class Reader:
    """Follows labelled trajectories and checkpoints; reads at most a bounded number of records and bytes ahead."""

    def __init__(
        self, kafka: KafkaSettings, codec: Codec, limits: Limits, start: Mapping[int, int], most_bytes: int = 2**28
    ) -> None:
        """Start reading labelled trajectories at `start` (offset by partition), checkpoints at the beginning.

        `most_bytes` is the memory of decoded tokens above which reading waits for `next`.

        Raises:
            KafkaException: a topic does not exist, or no broker answers.
        """
        self._limits = limits
        self._consumer = EventConsumer(kafka, codec)
        self._consumer.follow(
            [LABELED_TRAJECTORIES, CHECKPOINTS], {(LABELED_TRAJECTORIES, p): offset for p, offset in start.items()}
        )
        self._queue: queue.Queue[list[Arrival]] = queue.Queue(_BATCHES_AHEAD)
        self._most_bytes, self._held_bytes = most_bytes, 0
        self._holding = threading.Lock()
        self._handed: dict[tuple[str, int], int] = {}
        self._behind = self._consumer.has_records_beyond({})
        self._stopping = threading.Event()
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._read, name="reader", daemon=True)
        self._thread.start()

    def next(self, timeout_s: float) -> list[Arrival]:
        """Return the next records in order; empty if none came within `timeout_s` seconds. Blocks up to that time.

        Raises:
            Exception: the fault that ended the reading thread.
        """
        try:
            arrivals = self._queue.get(timeout=timeout_s) if timeout_s else self._queue.get_nowait()
        except queue.Empty:
            if self._fault is not None:
                raise self._fault from None
            return []
        self._hold(-sum(arrival.size_bytes for arrival in arrivals))
        return arrivals

    def is_behind(self) -> bool:
        """Return True if the log has records that `next` has not returned, by the broker's last answer; no blocking."""
        return self._behind

    def close(self) -> None:
        """Stop the thread and wait for its end."""
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        counted = time.thread_time()
        try:
            while not self._stopping.is_set():
                if self._held_bytes > self._most_bytes:
                    self._stopping.wait(0.01)
                    continue
                events = self._consumer.poll(_BATCH, 0.05)
                if events:
                    self._behind = True
                    self._put([arrival_of(event, self._limits) for event in events])
                    self._handed |= {(event.topic, event.partition): event.offset + 1 for event in events}
                self._behind = self._consumer.has_records_beyond(self._handed)
                spent = time.thread_time()
                metrics.READER_CPU.inc(spent - counted)
                counted = spent
        except Exception as fault:  # raised in the thread that calls `next`
            self._fault = fault

    def _put(self, arrivals: list[Arrival]) -> None:
        self._hold(sum(arrival.size_bytes for arrival in arrivals))
        while not self._stopping.is_set():
            try:
                self._queue.put(arrivals, timeout=0.1)
            except queue.Full:
                continue
            return

    def _hold(self, change: int) -> None:
        with self._holding:
            self._held_bytes += change


def read_decisions(kafka: KafkaSettings, codec: Codec, since_us: int, stop: Stop) -> Iterator[TrainingDecision]:
    """Yield the training decisions from `since_us` (Unix time in µs) to now; unreadable ones are logged and skipped.

    Blocks while the broker or the registry is unavailable.

    Raises:
        Cancelled: `stop` was set while one of them was unavailable.
    """
    return cast(Iterator[TrainingDecision], _records_since(kafka, codec, TRAINING_DECISIONS, since_us, stop))


def read_alarms(kafka: KafkaSettings, codec: Codec, stop: Stop) -> Iterator[Alarm]:
    """Yield the alarms on the log, as `read_decisions` does the decisions."""
    return cast(Iterator[Alarm], _records_since(kafka, codec, ALARMS, 0, stop))


def _records_since(kafka: KafkaSettings, codec: Codec, topic: str, since_us: int, stop: Stop) -> Iterator[Any]:
    retrying = RetryingCodec(codec, lambda: bool(stop))
    with closing(LogReader(kafka, "unused", lambda: bool(stop))) as reader:
        for batch in reader.read(reader.since(topic, since_us // 1000)):
            for record in batch:
                try:
                    yield retrying.decode(topic, record.value)
                except CodecError as error:
                    log.warning(
                        "skipped an unreadable record of %s at partition %d offset %d: %s",
                        topic, record.partition, record.offset, error,
                    )  # fmt: skip


def arrival_of(event: Event, limits: Limits) -> Arrival:
    """Convert a record of the followed topics."""
    position = (event.partition, event.offset)
    if event.topic == CHECKPOINTS:
        if event.record is None:
            log.warning("ignored unreadable checkpoint event %s at offset %d: %s", event.key, event.offset, event.error)
        return Arrival(position, checkpoint=event.record)
    if event.record is None:
        assert event.error is not None
        return Arrival(position, dead_letter=_dead_letter(event, event.error.kind, str(event.error)))
    try:
        return Arrival(position, attempt=attempt_of(event.record, position, limits))
    except Invalid as error:
        dead_letter = _dead_letter(event, "invalid", str(error))
        return Arrival(position, attempt=rejected_attempt(event.record, position, limits), dead_letter=dead_letter)


def _dead_letter(event: Event, error: str, reason: str) -> DeadLetter:
    return new_dead_letter(
        event_id=derived_id(JOB, event.topic, event.partition, event.offset),
        occurred_at_us=now_us(),
        job=JOB,
        topic=event.topic,
        partition=event.partition,
        offset=event.offset,
        key=event.key.encode(),
        value_bytes=len(event.value),
        value_sha256=hashlib.sha256(event.value).hexdigest(),
        error=error,
        reason=reason,
    )
