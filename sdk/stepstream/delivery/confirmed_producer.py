"""Send events without a spool and wait until Kafka has acknowledged all of them.

For producers that keep their events until they are acknowledged, as OpenTelemetry's exporters do.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message

from stepstream.config import KafkaSettings
from stepstream.core.slices import Work, in_slices
from stepstream.delivery.spooled_producer import SpooledProducer
from stepstream.delivery.types import EncodedEvent, Event
from stepstream.topics.codec import Codec, CodecError, RegistryUnavailable
from stepstream.topics.producer import EventProducer

LINGER_MS = 5.0
"""Longest wait to fill a batch. Kafka's client sends a request per partition, so shorter waits make many small ones.
Longer ones leave cores idle when few exporters wait for their answers."""
MAX_IN_FLIGHT = 50_000
_POLL_S = 0.002
OnReport = Callable[[KafkaError | None, Message], None]
_KEYS_POLL_S = 0.005


class NotDelivered(Exception):
    """Kafka has not acknowledged all events; some may have arrived. `retry`: sending them again may succeed."""

    def __init__(self, reason: str, *, retry: bool = True) -> None:
        super().__init__(reason)
        self.retry = retry


class _Batch:
    """The unanswered events of one call."""

    __slots__ = ("error", "future", "unanswered")

    def __init__(self, events: int) -> None:
        self.unanswered = events
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: KafkaError | None = None

    def on_report(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self.error = error
        self.unanswered -= 1
        if not self.unanswered and not self.future.done():
            self.future.set_result(None)


class ConfirmedProducer:
    """A producer for one event loop; connects at its first use. Close it.

    The event loop polls for delivery reports while some are due. A thread would wait for the interpreter's lock at each
    report, and a busy loop releases that lock last.
    """

    def __init__(self, kafka: KafkaSettings, spooled: SpooledProducer, source: str) -> None:
        """Share the codec of `spooled`, which also sends the keys of persons ahead of these events."""
        self._spooled = spooled
        self._codec: Codec = spooled.codec
        self._connect = partial(EventProducer, kafka, self._codec, source, linger_ms=LINGER_MS)
        self._producer: EventProducer | None = None
        self._topics_with_header: set[str] = set()
        self._next_poll: asyncio.TimerHandle | None = None

    async def deliver(self, events: Sequence[Event | EncodedEvent], timeout_s: float) -> None:
        """Send events; return when Kafka has acknowledged all of them.

        Raises:
            NotDelivered: Kafka has not acknowledged them within `timeout_s` seconds, or rejected one; or one fits no
                schema (then none was sent).
        """
        if not events:
            return
        deadline = time.monotonic() + timeout_s
        # An idle producer has length 0 and is falsy.
        producer = self._producer if self._producer is not None else self._start()
        if len(producer) + len(events) > MAX_IN_FLIGHT:
            raise NotDelivered(
                f"{len(producer)} of at most {MAX_IN_FLIGHT} events are in flight: send them again later"
            )
        try:
            encoded = await in_slices(self._encode_all(events))
            topics = {event.topic for event in encoded}
            limits = {topic: self._codec.inline_limit(topic) for topic in topics}
            for number, event in enumerate(encoded):
                if len(event.body) > limits[event.topic]:
                    encoded[number] = await self._without_content(event)
        except CodecError as error:
            raise NotDelivered(str(error), retry=False) from error
        except RegistryUnavailable as error:
            raise NotDelivered(str(error)) from error
        headers = await self._prepare(topics, deadline)
        batch = _Batch(len(events))
        self._schedule_poll()
        try:
            await in_slices(_send_all(producer, encoded, headers, batch.on_report))
        except BufferError:
            raise NotDelivered("the buffer of Kafka's client is full: send them again later") from None
        except (KafkaException, ValueError) as error:
            raise NotDelivered(str(error), retry=False) from error
        try:
            await asyncio.wait_for(batch.future, max(deadline - time.monotonic(), 0.0))
        except TimeoutError:
            raise NotDelivered(f"Kafka did not acknowledge all events within {timeout_s:g} s") from None
        if batch.error is not None:
            raise NotDelivered(f"Kafka rejected an event: {batch.error.str()}", retry=batch.error.retriable())

    def close(self) -> None:
        """Stop polling; unacknowledged events may or may not arrive."""
        if self._next_poll is not None:
            self._next_poll.cancel()
            self._next_poll = None

    def _start(self) -> EventProducer:
        self._producer = self._connect()
        return self._producer

    def _encode_all(self, events: Sequence[Event | EncodedEvent]) -> Work[list[EncodedEvent]]:
        encoded = []
        for event in events:
            if isinstance(event, EncodedEvent):
                encoded.append(event)
            else:
                encoded.append(self._encode(event))
                yield
        return encoded

    async def _without_content(self, event: EncodedEvent) -> EncodedEvent:
        """Move the content of a large event to the store."""
        return event._replace(body=await asyncio.to_thread(self._codec.move_out, event.topic, event.body))

    def _encode(self, event: Event) -> EncodedEvent:
        record = event.record
        body = self._codec.body(event.topic, record)
        return EncodedEvent(event.topic, event.key, record["event_id"], record["occurred_at_us"], body, event.headers)

    async def _prepare(self, topics: set[str], deadline: float) -> dict[str, bytes]:
        """Wait for the topics' schema ids, and until Kafka has the pending keys of persons.

        Returns:
            The five-byte header of each topic's records.
        """
        for topic in topics - self._topics_with_header:
            try:
                remaining = max(deadline - time.monotonic(), 0.0)
                await asyncio.wait_for(asyncio.to_thread(self._codec.header, topic), remaining)
            except TimeoutError:
                raise NotDelivered("the schema registry did not answer in time: check it") from None
            except RegistryUnavailable as error:
                raise NotDelivered(f"the schema registry is unavailable: {error}") from error
            self._topics_with_header.add(topic)
        while self._spooled.has_pending_keys():
            if time.monotonic() >= deadline:
                raise NotDelivered("Kafka did not acknowledge the key of a person in time: check the broker")
            await asyncio.sleep(_KEYS_POLL_S)
        return {topic: self._codec.header(topic) for topic in topics}

    def _schedule_poll(self) -> None:
        if self._next_poll is None:
            self._next_poll = asyncio.get_running_loop().call_later(_POLL_S, self._poll)

    def _poll(self) -> None:
        assert self._producer is not None
        self._producer.poll(0)
        self._next_poll = None
        if len(self._producer):
            self._schedule_poll()


def _send_all(
    producer: EventProducer, events: Sequence[EncodedEvent], headers: dict[str, bytes], on_report: OnReport
) -> Work[None]:
    yield from producer.send_bodies(events, headers, on_report)
