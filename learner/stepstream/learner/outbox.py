"""Sends events from a thread of its own, so that training waits neither for encoding, registry nor broker."""

import logging
import queue
import threading
from collections.abc import Iterable

from stepstream.config import Kafka
from stepstream.core.process import Fatal, Stop
from stepstream.learner.publish import SOURCE
from stepstream.topics.codec import Codec, RegistryUnavailable
from stepstream.topics.events import LearnerUpdate, TrainingDecision
from stepstream.topics.producer import DeliveryFailed, EventProducer

log = logging.getLogger(__name__)

Sent = tuple[str, str, TrainingDecision | LearnerUpdate]
"""Topic, key and record."""

_LINGER_MS = 20.0
_RETRY_S = 0.5
_GRACE_S = 5.0


class Outbox:
    """Takes events at once and delivers them in order, waiting for a registry or broker that is away."""

    def __init__(self, kafka: Kafka, codec: Codec, stop: Stop) -> None:
        """Once `stop` is set, what cannot be sent within seconds is given up: a restart decides it again."""
        self._stop = stop
        self._producer = EventProducer(kafka, codec, SOURCE, linger_ms=_LINGER_MS)
        self._queue: queue.SimpleQueue[list[Sent] | threading.Event] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def put(self, events: Iterable[Sent]) -> None:
        """Takes events; returns at once.

        Raises:
            Exception: what ended the sending.
        """
        if self._fault is not None:
            raise self._fault
        batch = list(events)
        if batch:
            self._queue.put(batch)

    def settle(self) -> None:
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
