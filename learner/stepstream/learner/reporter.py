"""What one lineage tells of itself while it trains: decisions and updates as events, and the same as metrics.

Sends events from a thread of its own, so that training waits neither for encoding, registry nor broker.
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
from stepstream.learner.decisions import DECISIONS, UPDATES, Decider, Use
from stepstream.learner.losses import Bucket
from stepstream.topics.codec import Codec, RegistryUnavailable
from stepstream.topics.events import LearnerUpdate, TrainingDecision, new_lag_figures
from stepstream.topics.producer import DeliveryFailed, EventProducer

log = logging.getLogger(__name__)

SentRecord = tuple[str, str, TrainingDecision | LearnerUpdate]
"""Topic, key and record."""

_LINGER_MS = 20.0
_RETRY_S = 0.5
_GRACE_S = 5.0


class BackgroundSender:
    """Takes events at once and delivers them in order, waiting for a registry or broker that is away."""

    def __init__(self, kafka: KafkaSettings, codec: Codec, stop: Stop) -> None:
        """Once `stop` is set, what cannot be sent within seconds is given up: a restart decides it again."""
        self._stop = stop
        self._producer = EventProducer(kafka, codec, SOURCE, linger_ms=_LINGER_MS)
        self._queue: queue.SimpleQueue[list[SentRecord] | threading.Event] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def put(self, events: Iterable[SentRecord]) -> None:
        """Takes events; returns at once.

        Raises:
            Exception: what ended the sending.
        """
        if self._fault is not None:
            raise self._fault
        batch = list(events)
        if batch:
            self._queue.put(batch)

    def flush(self) -> None:
        """Blocks until everything that was put is durable.

        Raises:
            Fatal: asked to stop before it was.
            Exception: what ended the sending.
        """
        done = threading.Event()
        self._queue.put(done)
        waited = 0.0
        while not done.wait(0.1):
            if self._fault is not None:
                raise self._fault
            waited += 0.1 if self._stop else 0.0
            if waited > _GRACE_S:
                raise Fatal("stopped before the broker acknowledged what was decided")

    def close(self) -> None:
        """Sends what can be sent within seconds, and ends the thread."""
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
            log.warning("decisions were not sent, a restart takes them again: %s", fault)
            self._fault = fault
        except Exception as fault:  # handed to the thread that waits in `settle`
            log.exception("decisions cannot be sent")
            self._fault = fault

    def _send(self, topic: str, key: str, record: TrainingDecision | LearnerUpdate) -> None:
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
        """Waits until all is durable, or for a moment where the outbox is being closed."""
        while len(self._producer) and not self._closing.is_set():
            self._producer.poll(0.1)
        self._producer.flush(_GRACE_S)


Groups = Sequence[Sequence[Attempt]]


class Reporter:
    """Nothing here blocks but `settle`."""

    def __init__(self, decider: Decider, outbox: BackgroundSender) -> None:
        self._decider, self._outbox = decider, outbox
        self._dropped: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._unpublished: list[tuple[int, int, Groups]] = []

    @contextmanager
    def time(self, activity: str) -> Iterator[None]:
        """Counts the seconds of the block for the activity, in the metrics and in the next update's event."""
        began = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            self._seconds[activity] += seconds
            metrics.SECONDS.labels(activity).inc(seconds)

    def let_go(self, fates: Iterable[Drop], version: int) -> None:
        """Attempts that a learner which trains from `version` will not train on."""
        fates = list(fates)
        self._dropped.update(fate.reason for fate in fates)
        for fate in fates:
            metrics.DROPPED.labels(fate.reason).inc()
        self._outbox.put(
            (DECISIONS, fate.attempt.trajectory_id, self._decider.dropped(fate, version)) for fate in fates
        )

    def updated(
        self, number: int, version: int, groups: Groups, figures: dict[str, float], lags: Sequence[Bucket]
    ) -> None:
        """An update was done, from `version`; its version is not published yet."""
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
        self._outbox.put([(UPDATES, event["model"], event)])
        self._dropped.clear()
        self._seconds.clear()
        _show(version, groups, figures, lags)

    def published(self, version: int) -> None:
        """The updates that were told are part of `version`, which is durable."""
        for number, before, groups in self._unpublished:
            use = Use(number, before, version)
            for group in groups:
                self.trained(group, [use])
        self._unpublished = []

    def trained(self, attempts: Iterable[Attempt], uses: Sequence[Use]) -> None:
        """Attempts are part of published versions; telling it again after a crash says nothing new."""
        self._outbox.put(
            (DECISIONS, attempt.trajectory_id, self._decider.trained(attempt, use))
            for attempt in attempts
            for use in uses
        )

    def flush(self) -> None:
        """Blocks until everything that was told is durable.

        Raises:
            Fatal: asked to stop before it was.
        """
        self._outbox.flush()


def _show(version: int, groups: Groups, figures: dict[str, float], lags: Sequence[Bucket]) -> None:
    for attempt in (attempt for group in groups for attempt in group):
        if (staleness := attempt.staleness(version)) is not None:
            metrics.STALENESS.observe(max(0, staleness))
    for name, value in figures.items():
        metrics.FIGURE.labels(name).set(value)
    for lag in lags:
        within = "more" if lag.most is None else str(lag.most)
        metrics.LAG_TOKENS.labels(within).inc(lag.tokens)
        metrics.LAG_EFFECTIVE.labels(within).set(lag.effective_share)
    metrics.UPDATES.inc()
    metrics.TOKENS.inc(figures["tokens"])
