"""Publishes events without ever delaying or failing a call.

`publish` encodes and queues in the caller's thread, which takes microseconds and never blocks. What cannot be queued
(the registry has not been reached yet, or Kafka has been away for so long that its client's queue is full) waits in
a bounded backlog in memory, which a thread works off in order.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, Message

from stepstream.config import Settings
from stepstream.services.gateway.metrics import Metrics
from stepstream.topics.codec import Codec, CodecError, RegistryUnavailable
from stepstream.topics.producer import EventProducer

log = logging.getLogger(__name__)

RETRY_S = 0.5
# Each batch costs a request to the broker, and each look at the reports a switch of threads: a few of them per
# second and partition take a fraction of the processor time of one per event, and the agent waits for neither.
LINGER_MS = 50.0
POLL_S = 0.05


class Event(NamedTuple):
    """One event to publish."""

    topic: str
    key: str
    record: Any
    headers: Mapping[str, str] | None = None


class Publisher:
    """The way of the gateway's events to Kafka. Close it, or events in memory are lost."""

    def __init__(self, settings: Settings, source: str, metrics: Metrics) -> None:
        self._metrics = metrics
        self._limit = settings.gateway.backlog_events
        self._producer = EventProducer(settings.kafka, Codec(settings.schema_registry), source, linger_ms=LINGER_MS)
        self._backlog: deque[Event] = deque()
        self._queued = 0
        self._answered = 0
        self._known: set[str] = set()  # topics whose schema the codec has looked up: encoding them does not block
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="events", daemon=True)
        self._thread.start()

    def publish(self, event: Event) -> bool:
        """Queues one event; False if it is lost, since as many wait already as may."""
        if event.topic in self._known and not self._backlog:
            try:
                self._send(event)
            except BufferError:
                pass
            except CodecError as error:
                self._refuse(event, str(error))
                return True
            else:
                return True
        if len(self._backlog) >= self._limit:
            self._metrics.events_lost.inc()
            log.error("event %s lost: %d events wait for Kafka already", event.record["event_id"], self._limit)
            return False
        # The thread takes an event out only once it is queued, so events stay in order.
        self._backlog.append(event)
        self._metrics.backlog.set(len(self._backlog))
        return True

    def waiting(self) -> int:
        """Events that are not durable yet."""
        return len(self._backlog) + self._queued - self._answered

    def close(self, timeout_s: float) -> int:
        """Delivers what it can within `timeout_s` seconds; returns how many events are lost."""
        deadline = time.monotonic() + timeout_s
        while self.waiting() and time.monotonic() < deadline:
            time.sleep(0.01)
        self._stopping.set()
        # The thread may be inside a call to a registry that hangs: it is a daemon, so don't wait for that.
        self._thread.join(max(deadline - time.monotonic(), 0.0) + 2 * POLL_S)
        return self.waiting()

    def _send(self, event: Event) -> None:
        self._producer.send(event.topic, event.key, event.record, headers=event.headers, on_delivery=self._delivered)
        self._queued += 1  # never from two threads at once: see `publish`

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self._answered += 1
        if error is None:
            self._metrics.events_delivered.inc()
        else:
            self._metrics.events_refused.inc()
            log.error("Kafka refused an event for %s of trajectory %r: %s", message.topic(), message.key(), error)

    def _refuse(self, event: Event, why: str) -> None:
        self._metrics.events_refused.inc()
        log.error("event %s for %s cannot be published: %s", event.record["event_id"], event.topic, why)

    def _serve(self) -> None:
        told = False
        while not self._stopping.is_set():
            self._producer.poll(0)
            if not self._backlog:
                self._stopping.wait(POLL_S)
                continue
            event = self._backlog[0]
            try:
                self._send(event)
            except BufferError:
                self._stopping.wait(POLL_S)
                continue
            except RegistryUnavailable as error:
                if not told:
                    log.warning("events wait in memory: %s", error)
                    told = True
                self._stopping.wait(RETRY_S)
                continue
            except CodecError as error:
                self._refuse(event, str(error))
            else:
                self._known.add(event.topic)
                if told:
                    log.info("the schema registry answers: events are delivered again")
                    told = False
            self._backlog.popleft()
            self._metrics.backlog.set(len(self._backlog))
