"""Events that somebody waits for: sent at once, and told when Kafka has them all. They are not spooled.

For producers that keep what they have until it is acknowledged, as OpenTelemetry's exporters do.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message

from stepstream.config import KafkaSettings
from stepstream.delivery.spooled_producer import SpooledProducer
from stepstream.delivery.types import EncodedEvent, Event
from stepstream.topics.codec import Codec, CodecError, RegistryUnavailable
from stepstream.topics.producer import EventProducer

LINGER_MS = 10.0
"""Kafka's client asks for each partition in a request of its own, so short waits make many small ones; exporters do
not wait for the answer."""
MOST_WAITING = 50_000
_ASK_S = 0.002
_KEYS_S = 0.005

log = logging.getLogger(__name__)


class NotDelivered(Exception):
    """Not all events are in Kafka for sure; some may be. `retry`: whether sending them again may help."""

    def __init__(self, reason: str, *, retry: bool = True) -> None:
        super().__init__(reason)
        self.retry = retry


class _Batch:
    """Counts the answers for the events of one call."""

    __slots__ = ("error", "future", "left")

    def __init__(self, events: int) -> None:
        self.left = events
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: KafkaError | None = None

    def answered(self, error: KafkaError | None, _message: Message) -> None:
        """The report on one event."""
        if error is not None:
            self.error = error
        self.left -= 1
        if not self.left and not self.future.done():
            self.future.set_result(None)


class ConfirmedProducer:
    """Made for one event loop; connects at the first use. Close it.

    The loop itself asks for reports while some are due. In a thread of its own every single report would wait for the
    interpreter's lock, which the loop gives up last when there is most to report.
    """

    def __init__(self, kafka: KafkaSettings, delivery: SpooledProducer, source: str) -> None:
        """`delivery` lends its codec, and sends the keys of persons ahead."""
        self._delivery = delivery
        self._codec: Codec = delivery.codec
        self._connect = partial(EventProducer, kafka, self._codec, source, linger_ms=LINGER_MS)
        self._producer: EventProducer | None = None
        self._known: set[str] = set()
        self._asking: asyncio.TimerHandle | None = None

    async def deliver(self, events: Sequence[Event | EncodedEvent], timeout_s: float) -> None:
        """Returns when Kafka has acknowledged all events.

        Raises:
            NotDelivered: it has not within `timeout_s` seconds, or refused one; or one fits no schema (then none was
                sent).
        """
        if not events:
            return
        deadline = time.monotonic() + timeout_s
        # An idle producer has a length of 0 and counts as false.
        producer = self._producer if self._producer is not None else self._start()
        if len(producer) + len(events) > MOST_WAITING:
            raise NotDelivered("as many events are under way to Kafka as may be: send them again later")
        try:
            ready = [event if isinstance(event, EncodedEvent) else self._encoded(event) for event in events]
        except CodecError as error:
            raise NotDelivered(str(error), retry=False) from error
        except RegistryUnavailable as error:
            raise NotDelivered(str(error)) from error
        headers = await self._prepare({event.topic for event in ready}, deadline)
        batch = _Batch(len(events))
        answered = batch.answered
        self._ask()
        try:
            for topic, key, event_id, at, body, context in ready:
                producer.send_stamped(topic, key, headers[topic] + body, event_id, at, context, answered)
        except BufferError:
            raise NotDelivered("Kafka's client is full: send them again later") from None
        except (KafkaException, ValueError) as error:
            raise NotDelivered(str(error), retry=False) from error
        try:
            await asyncio.wait_for(batch.future, max(deadline - time.monotonic(), 0.0))
        except TimeoutError:
            raise NotDelivered(f"Kafka did not acknowledge them within {timeout_s:g} s") from None
        if batch.error is not None:
            raise NotDelivered(f"Kafka refused one: {batch.error.str()}", retry=batch.error.retriable())

    def close(self) -> None:
        """Stops; events that are not acknowledged yet may or may not arrive."""
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _encoded(self, event: Event) -> EncodedEvent:
        record = event.record
        body = self._codec.body(event.topic, record)
        return EncodedEvent(event.topic, event.key, record["event_id"], record["occurred_at_us"], body, event.headers)

    async def _prepare(self, topics: set[str], deadline: float) -> dict[str, bytes]:
        """Waits for what must be known before anything is sent: ids of schemas, keys of persons.

        Returns:
            What stands before each topic's records.
        """
        for topic in topics - self._known:
            try:
                patience = max(deadline - time.monotonic(), 0.0)
                await asyncio.wait_for(asyncio.to_thread(self._codec.header, topic), patience)
            except (RegistryUnavailable, TimeoutError) as error:
                raise NotDelivered(f"the schema registry does not answer: {error}") from error
            self._known.add(topic)
        while self._delivery.keys_waiting():
            if time.monotonic() >= deadline:
                raise NotDelivered("Kafka does not take the key of a person: is it away?")
            await asyncio.sleep(_KEYS_S)
        return {topic: self._codec.header(topic) for topic in topics}

    def _start(self) -> EventProducer:
        self._producer = self._connect()
        return self._producer

    def _ask(self) -> None:
        if self._asking is None:
            self._asking = asyncio.get_running_loop().call_later(_ASK_S, self._poll)

    def _poll(self) -> None:
        assert self._producer is not None
        self._producer.poll(0)
        self._asking = None
        if len(self._producer):
            self._ask()
