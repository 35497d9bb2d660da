"""Reads labelled trajectories ahead of the learner, in a thread, and decodes them while it trains."""

import hashlib
import logging
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import cast

from stepstream.config import KafkaSettings
from stepstream.core.process import Stop
from stepstream.jobs.runtime.log_reader import LogReader
from stepstream.jobs.runtime.retry import RetryingCodec
from stepstream.learner import JOB, metrics
from stepstream.learner.data.attempt import Attempt, LogPosition, attempt_of, refused
from stepstream.learner.data.sequences import Invalid, Limits
from stepstream.learner.decisions import DECISIONS
from stepstream.learner.lineage import TOPIC as CHECKPOINTS
from stepstream.learner.publish import INPUT
from stepstream.topics.codec import Codec, CodecError
from stepstream.topics.consumer import Event, EventConsumer
from stepstream.topics.events import Checkpoint, DeadLetter, TrainingDecision, new_dead_letter
from stepstream.topics.ids import derived_id, now_us

log = logging.getLogger(__name__)

_BATCH = 200
_BATCHES_AHEAD = 50


@dataclass(frozen=True, slots=True)
class Arrival:
    """One record that was read: an attempt, a refusal of a record (with its attempt, where one can be told), or a
    checkpoint event."""

    place: LogPosition
    attempt: Attempt | None = None
    refusal: DeadLetter | None = None
    checkpoint: Checkpoint | None = None


class Reader:
    """Follows labelled trajectories and checkpoints; reads at most a bounded number of records ahead."""

    def __init__(self, kafka: KafkaSettings, codec: Codec, limits: Limits, start: Mapping[int, int]) -> None:
        """Starts reading labelled trajectories at `start` (offset by partition), checkpoints at the beginning.

        Raises:
            KafkaException: a topic does not exist, or no broker answers.
        """
        self._limits = limits
        self._consumer = EventConsumer(kafka, codec)
        self._consumer.follow([INPUT, CHECKPOINTS], {(INPUT, p): offset for p, offset in start.items()})
        self._queue: queue.Queue[list[Arrival]] = queue.Queue(_BATCHES_AHEAD)
        self._handed: dict[tuple[str, int], int] = {}
        self._behind = self._consumer.has_beyond({})
        self._stopping = threading.Event()
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._read, name="reader", daemon=True)
        self._thread.start()

    def next(self, timeout_s: float) -> list[Arrival]:
        """What was read next, in order; empty if nothing came within `timeout_s` seconds.

        Raises:
            Exception: whatever ended the reading.
        """
        try:
            return self._queue.get(timeout=timeout_s) if timeout_s else self._queue.get_nowait()
        except queue.Empty:
            if self._fault is not None:
                raise self._fault from None
            return []

    def is_behind(self) -> bool:
        """Whether the log, as far as the broker has told, has more than was handed over; at once."""
        return self._behind

    def close(self) -> None:
        """Stops reading."""
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        counted = time.thread_time()
        try:
            while not self._stopping.is_set():
                events = self._consumer.poll(_BATCH, 0.05)
                if events:
                    self._behind = True
                    self._put([arrival_of(event, self._limits) for event in events])
                    self._handed |= {(event.topic, event.partition): event.offset + 1 for event in events}
                self._behind = self._consumer.has_beyond(self._handed)
                spent = time.thread_time()
                metrics.READER_CPU.inc(spent - counted)
                counted = spent
        except Exception as fault:  # handed to the thread that waits in `next`
            self._fault = fault

    def _put(self, arrivals: list[Arrival]) -> None:
        while not self._stopping.is_set():
            try:
                self._queue.put(arrivals, timeout=0.1)
            except queue.Full:
                continue
            return


def read_decisions(kafka: KafkaSettings, codec: Codec, since_us: int, stop: Stop) -> Iterator[TrainingDecision]:
    """Decisions of learners from a time to now; unreadable ones are passed over.

    Raises:
        Abandoned: asked to stop while the broker or the registry was away.
    """
    patient = RetryingCodec(codec, lambda: bool(stop))
    with closing(LogReader(kafka, "unused", lambda: bool(stop))) as reader:
        for batch in reader.read(reader.since(DECISIONS, since_us // 1000)):
            for record in batch:
                try:
                    yield cast(TrainingDecision, patient.decode(DECISIONS, record.value))
                except CodecError as error:
                    log.warning("decision at partition %d offset %d: %s", record.partition, record.offset, error)


def arrival_of(event: Event, limits: Limits) -> Arrival:
    """What a record means to the learner."""
    place = (event.partition, event.offset)
    if event.topic == CHECKPOINTS:
        if event.record is None:
            log.warning("checkpoint event %s at offset %d cannot be read: %s", event.key, event.offset, event.error)
        return Arrival(place, checkpoint=event.record)
    if event.record is None:
        assert event.error is not None
        return Arrival(place, refusal=_refusal(event, event.error.kind, str(event.error)))
    try:
        return Arrival(place, attempt=attempt_of(event.record, place, limits))
    except Invalid as error:
        refusal = _refusal(event, "invalid", str(error))
        return Arrival(place, attempt=refused(event.record, place, limits), refusal=refusal)


def _refusal(event: Event, error: str, reason: str) -> DeadLetter:
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
