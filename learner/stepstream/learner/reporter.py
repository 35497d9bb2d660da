"""Report a lineage's decisions and updates, as events and as metrics.

A thread of its own sends the events, so that training waits neither for encoding nor for the registry or the broker.
"""

import logging
import queue
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from stepstream.config import KafkaSettings
from stepstream.core.process import Fatal, Stop
from stepstream.learner import SOURCE, metrics
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.drop_reasons import Drop
from stepstream.learner.decisions import Decider, Use
from stepstream.learner.losses import Bucket
from stepstream.topics.catalogue import ALARMS, LEARNER_UPDATES, TRAINING_DECISIONS
from stepstream.topics.codec import Codec, RegistryUnavailable
from stepstream.topics.events import Alarm, LearnerUpdate, TrainingDecision, new_lag_figures
from stepstream.topics.producer import DeliveryFailed, EventProducer

log = logging.getLogger(__name__)

SentRecord = tuple[str, str, TrainingDecision | LearnerUpdate | Alarm]
"""Topic, key and record."""

_LINGER_MS = 20.0
_RETRY_S = 0.5
_GRACE_S = 5.0


class BackgroundSender:
    """Sends events in order from a thread, and retries while the registry or the broker is unavailable."""

    def __init__(self, kafka: KafkaSettings, codec: Codec, stop: Stop) -> None:
        """Start the thread.

        Once `stop` is set, events that cannot be sent within 5 seconds are dropped: a restart decides them again.
        """
        self._stop = stop
        self._producer = EventProducer(kafka, codec, SOURCE, linger_ms=_LINGER_MS)
        self._queue: queue.SimpleQueue[list[SentRecord] | threading.Event] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def put(self, events: Iterable[SentRecord]) -> None:
        """Queue events without blocking.

        Raises:
            Exception: the fault that ended the thread.
        """
        if self._fault is not None:
            raise self._fault
        batch = list(events)
        if batch:
            self._queue.put(batch)

    def flush(self) -> None:
        """Block until every queued event is durable.

        Raises:
            Fatal: a stop was requested, and events were not acknowledged within 5 seconds.
            Exception: the fault that ended the thread.
        """
        done = threading.Event()
        self._queue.put(done)
        waited = 0.0
        while not done.wait(0.1):
            if self._fault is not None:
                raise self._fault
            waited += 0.1 if self._stop else 0.0
            if waited > _GRACE_S:
                raise Fatal("stopped before the broker acknowledged the decisions in flight")

    def close(self) -> None:
        """Send what can be sent within 5 seconds, and end the thread."""
        self._closing.set()
        self._queue.put([])
        self._thread.join(2 * _GRACE_S)

    def _run(self) -> None:
        try:
            while not (self._closing.is_set() and self._queue.empty()):
                taken = self._queue.get()
                if isinstance(taken, threading.Event):
                    self._flush()
                    taken.set()
                else:
                    for topic, key, record in taken:
                        self._send(topic, key, record)
                    self._producer.poll()
            self._flush()
        except DeliveryFailed as fault:
            log.warning("decisions were not sent; a restart sends them again: %s", fault)
            self._fault = fault
        except Exception as fault:  # raised in the thread that calls `put` or `flush`
            log.exception("decisions cannot be sent")
            self._fault = fault

    def _send(self, topic: str, key: str, record: TrainingDecision | LearnerUpdate | Alarm) -> None:
        while True:
            try:
                return self._producer.send(topic, key, record)
            except BufferError:
                self._producer.poll(_RETRY_S)
            except RegistryUnavailable as error:
                log.warning("waiting for the schema registry: %s", error)
                self._closing.wait(_RETRY_S)
            if self._closing.is_set():
                return None

    def _flush(self) -> None:
        """Wait until every sent event is durable; once the sender is being closed, for at most 5 seconds."""
        while len(self._producer) and not self._closing.is_set():
            self._producer.poll(0.1)
        self._producer.flush(_GRACE_S)


Groups = Sequence[Sequence[Attempt]]


class Reporter:
    """Reports drops, updates and trained attempts of one lineage. Only `flush` blocks.

    While a version is in publication, events are held back: they may name it, and a crash would take it back.
    """

    def __init__(self, decider: Decider, sender: BackgroundSender) -> None:
        self._decider, self._sender = decider, sender
        self._held: list[SentRecord] | None = None
        self._in_publication: list[tuple[int, int, Groups]] = []
        self._dropped: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._unpublished: list[tuple[int, int, Groups]] = []

    @contextmanager
    def time(self, activity: str) -> Iterator[None]:
        """Measure the block's seconds for the activity, in the metrics and in the next update's event."""
        started_s = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - started_s
            self._seconds[activity] += seconds
            metrics.SECONDS.labels(activity).inc(seconds)

    def report_dropped(self, drops: Iterable[Drop], version: int) -> None:
        """Report attempts that the learner dropped while it trained from `version`."""
        drops = list(drops)
        self._dropped.update(drop.reason for drop in drops)
        for drop in drops:
            metrics.DROPPED.labels(drop.reason).inc()
        self._put(
            (TRAINING_DECISIONS, drop.attempt.trajectory_id, self._decider.dropped(drop, version)) for drop in drops
        )

    def report_update(
        self, number: int, version: int, groups: Groups, figures: dict[str, float], lags: Sequence[Bucket]
    ) -> None:
        """Report update `number` from `version`, and keep its groups until its version is published."""
        self._unpublished.append((number, version, groups))
        buckets = [
            new_lag_figures(
                least=lag.least,
                most=lag.most,
                tokens=lag.tokens,
                effective_share=lag.effective_share,
                clip_share=lag.shares[0],
                rejected_share=lag.shares[1],
                kl=lag.kl,
            )
            for lag in lags
            if lag.tokens
        ]
        event = self._decider.update(number, version, groups, figures, buckets, self._dropped, self._seconds)
        self._put([(LEARNER_UPDATES, event["model"], event)])
        self._dropped.clear()
        self._seconds.clear()
        _update_metrics(version, groups, figures, lags)

    def begin_publication(self) -> None:
        """Hold back all events until `report_published`: a version with the updates so far is in publication."""
        self._in_publication, self._unpublished = self._unpublished, []
        self._held = []

    def report_published(self, version: int) -> None:
        """Report the attempts of the version in publication, which must be durable, and what was held back."""
        held, self._held = self._held or [], None
        for number, trained_from, groups in self._in_publication:
            use = Use(number, trained_from, version)
            for group in groups:
                self.report_trained(group, [use])
        self._in_publication = []
        self._put(held)

    def report_trained(self, attempts: Iterable[Attempt], uses: Sequence[Use]) -> None:
        """Report attempts as part of published versions; a repetition after a crash has the same event ids."""
        self._put(
            (TRAINING_DECISIONS, attempt.trajectory_id, self._decider.trained(attempt, use))
            for attempt in attempts
            for use in uses
        )

    def report_alarm(self, alarm: Alarm) -> None:
        """Report that an alarm was raised or cleared."""
        metrics.GAP_ALARM.set(alarm["state"] == "raised")
        level = logging.WARNING if alarm["state"] == "raised" else logging.INFO
        log.log(level, "alarm %s: %s", alarm["state"], alarm["message"])
        self._sender.put([(ALARMS, alarm["alarm_id"], alarm)])

    def flush(self) -> None:
        """Block until every report that is not held back is durable; for any thread.

        Raises:
            Fatal: a stop was requested first.
        """
        self._sender.flush()

    def _put(self, events: Iterable[SentRecord]) -> None:
        if self._held is None:
            self._sender.put(events)
        else:
            self._held.extend(events)


def _update_metrics(version: int, groups: Groups, figures: dict[str, float], lags: Sequence[Bucket]) -> None:
    for attempt in (attempt for group in groups for attempt in group):
        if (staleness := attempt.staleness(version)) is not None:
            metrics.STALENESS.observe(max(0, staleness))
    metrics.FIGURE.clear()  # an update may lack figures of the one before
    for name, value in figures.items():
        metrics.FIGURE.labels(name).set(value)
    for lag in lags:
        within = "more" if lag.most is None else str(lag.most)
        metrics.LAG_TOKENS.labels(within).inc(lag.tokens)
        metrics.LAG_EFFECTIVE.labels(within).set(lag.effective_share)
    metrics.UPDATES.inc()
    metrics.TOKENS.inc(figures["tokens"])
