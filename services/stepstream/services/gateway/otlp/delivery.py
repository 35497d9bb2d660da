"""Publishes records and tells when Kafka has all of them."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Protocol

from confluent_kafka import KafkaError, Message

from stepstream.config import Settings
from stepstream.services.gateway.otlp.assembly import Record
from stepstream.topics.codec import RegistryUnavailable, codec_of
from stepstream.topics.producer import EventProducer

log = logging.getLogger(__name__)

POLL_S = 0.02
LINGER_MS = 5.0


class NotDelivered(Exception):
    """Kafka has not acknowledged all of it in time; it may still get there."""


class Deliverer(Protocol):
    """What the receiver needs of a publisher."""

    async def deliver(self, events: Sequence[Record], timeout_s: float) -> None:
        """Returns once Kafka has acknowledged all events, by all in-sync replicas.

        Raises:
            NotDelivered: it has not within `timeout_s` seconds, or refuses one for good.
        """
        ...


class _Batch:
    """One `deliver`: counts the reports that come in the polling thread."""

    __slots__ = ("_done", "_left", "_loop", "error")

    def __init__(self, size: int, loop: asyncio.AbstractEventLoop, done: "asyncio.Future[None]") -> None:
        self._left = size
        self._loop = loop
        self._done = done
        self.error: KafkaError | None = None

    def report(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self.error = error
        self._left -= 1
        if not self._left:
            self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)


class AcknowledgedProducer:
    """A producer of its own, whose reports a thread takes in. Close it."""

    def __init__(self, settings: Settings, source: str) -> None:
        self._codec = codec_of(settings)
        self._producer = EventProducer(settings.kafka, self._codec, source, linger_ms=LINGER_MS)
        self._known: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="otlp-reports", daemon=True)
        self._thread.start()

    async def deliver(self, events: Sequence[Record], timeout_s: float) -> None:
        """See `Deliverer`."""
        if not events:
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        batch = _Batch(len(events), loop, done)
        try:
            async with asyncio.timeout(timeout_s):
                # A schema or a person's key that is not known yet is asked for, which blocks.
                if all(event.topic in self._known and not event.record.get("user") for event in events):
                    self._send(events, batch)
                else:
                    await asyncio.to_thread(self._send, events, batch)
                    self._known.update(event.topic for event in events)
                await done
        except (TimeoutError, RegistryUnavailable, BufferError) as error:
            raise NotDelivered(str(error) or f"Kafka has not acknowledged it within {timeout_s:g} s") from error
        if batch.error is not None:
            raise NotDelivered(str(batch.error))

    def close(self) -> None:
        """Stops; what is not acknowledged was not promised to anyone."""
        self._stopping.set()
        self._thread.join()
        self._codec.close()

    def _send(self, events: Sequence[Record], batch: _Batch) -> None:
        for event in events:
            self._producer.send(event.topic, event.key, event.record, headers=event.headers, on_delivery=batch.report)

    def _serve(self) -> None:
        while not self._stopping.is_set():
            self._producer.poll(POLL_S)
