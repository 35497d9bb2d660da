"""Publish events to Kafka: idempotent, acknowledged by all in-sync replicas, with CloudEvents headers."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from confluent_kafka import KafkaError, Message

from stepstream.config import KafkaSettings
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.client import producer
from stepstream.topics.codec import Codec

log = logging.getLogger(__name__)

OnDelivery = Callable[[KafkaError | None, Message], None]
_EVENTS_OF_SLICE = 16


class DeliveryFailed(Exception):
    """Kafka rejected events permanently, or did not acknowledge them in time: their effect is not durable."""


class EventProducer:
    """Sends records of catalogue topics. Thread-safe.

    While no broker is reachable, events stay queued in memory without a time limit, so `flush` returns only when all
    are durable.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        codec: Codec,
        source: str,
        *,
        linger_ms: float = 5.0,
        extra_config: Mapping[str, Any] | None = None,
    ) -> None:
        """Connect lazily.

        Args:
            kafka: connection.
            codec: encodes the records.
            source: `ce_source` of every event, as `gateway/0.1.0`.
            linger_ms: wait for further events before a batch is sent.
            extra_config: further librdkafka settings.

        Raises:
            SettingsError: a setting is invalid; see `reporting_invalid_settings`.
        """
        self._codec = codec
        self._source = source.encode()
        self._failures: list[str] = []
        self._fixed_headers: dict[str, list[tuple[str, str | bytes | None]]] = {}
        self._producer = producer(
            kafka,
            {
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": linger_ms,
                "compression.type": "lz4",
                "partitioner": "murmur2_random",
                "message.timeout.ms": 0,
                "message.max.bytes": max(topic.max_message_bytes for topic in TOPICS.values()),
            }
            | dict(extra_config or {}),
        )

    def send(
        self,
        topic: str,
        key: str,
        record: Any,
        *,
        headers: Mapping[str, str] | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Queue one record. Only the first record of a topic blocks, for the registry.

        Args:
            topic: a topic of the catalogue.
            key: the record's key. Kafka keeps the order of records of one key.
            record: typed dict of the topic's schema, with an `event_id` and `occurred_at_us`.
            headers: further headers, as `traceparent`.
            on_delivery: called in `poll` or `flush` with the broker's answer.

        Raises:
            Unencodable: the record does not match its schema.
            RegistryUnavailable: the schema's id is not cached and the registry does not answer.
            BufferError: the queue is full; call `poll` and retry.
        """
        self.send_encoded(topic, key, self._codec.encode(topic, record), record, headers, on_delivery)

    def send_encoded(
        self,
        topic: str,
        key: str,
        value: bytes,
        record: Any,
        headers: Mapping[str, str] | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Queue one record whose value is encoded already, as `send`."""
        self.send_stamped(topic, key, value, record["event_id"], record["occurred_at_us"], headers, on_delivery)

    def send_stamped(
        self,
        topic: str,
        key: str,
        value: bytes,
        event_id: str,
        occurred_at_us: int,
        headers: Mapping[str, str] | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Queue an encoded value with its id and time, as `send`."""
        self._producer.produce(
            topic,
            value=value,
            key=key.encode(),
            headers=self._headers(topic, event_id, occurred_at_us, headers),
            on_delivery=on_delivery or self._note_failure,
        )

    def send_bodies(
        self,
        events: Iterable[tuple[str, str, str, int, bytes, Mapping[str, str] | None]],
        prefixes: Mapping[str, bytes],
        on_delivery: OnDelivery,
    ) -> Iterator[None]:
        """Queue many encoded records, as `send`; yield after each few of them.

        Args:
            events: of each: topic, key, id, time in microseconds, Avro body, further headers.
            prefixes: the registry's five bytes before a body, by topic.
            on_delivery: called for each event, as that of `send`.
        """
        produce, headers_of = self._producer.produce, self._headers
        for number, (topic, key, event_id, occurred_at_us, body, context) in enumerate(events, 1):
            produce(
                topic,
                value=prefixes[topic] + body,
                key=key.encode(),
                headers=headers_of(topic, event_id, occurred_at_us, context),
                on_delivery=on_delivery,
            )
            if not number % _EVENTS_OF_SLICE:
                yield

    def delete(self, topic: str, key: str) -> None:
        """Queue a tombstone, which deletes the key from a compacted topic.

        Raises:
            BufferError: the queue is full; call `poll` and retry.
        """
        self._producer.produce(topic, value=None, key=key.encode(), on_delivery=self._note_failure)

    def poll(self, timeout_s: float = 0.0) -> int:
        """Call `on_delivery` for the broker's answers; block up to `timeout_s`. Return their number."""
        return int(self._producer.poll(timeout_s))

    def flush(self, timeout_s: float | None = None) -> None:
        """Block until everything sent is durable.

        Raises:
            DeliveryFailed: Kafka rejected an event, or `timeout_s` seconds passed.
        """
        pending = self._producer.flush() if timeout_s is None else self._producer.flush(timeout_s)
        if self._failures:
            failures, self._failures = self._failures, []
            raise DeliveryFailed(f"{len(failures)} events rejected by Kafka, the first: {failures[0]}")
        if pending:
            raise DeliveryFailed(f"{pending} events not acknowledged within {timeout_s} s: is Kafka reachable?")

    def __len__(self) -> int:
        """Return the number of events queued or in flight."""
        return len(self._producer)

    def _note_failure(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures.append(f"{message.topic()}: {error}")

    def _headers(
        self, topic: str, event_id: str, occurred_at_us: int, further: Mapping[str, str] | None = None
    ) -> list[tuple[str, str | bytes | None]]:
        fixed = self._fixed_headers.get(topic)
        if fixed is None:
            kind = f"stepstream.{TOPICS[topic].schema}".encode()
            fixed = [("ce_specversion", b"1.0"), ("ce_type", kind), ("ce_source", self._source)]
            fixed.append(("content-type", b"application/avro"))
            self._fixed_headers[topic] = fixed
        second, micros = divmod(occurred_at_us, 1_000_000)
        # The format of datetime.isoformat, which is slow to call for every event.
        time = b"%b.%06d+00:00" % (_iso_second(second), micros)
        headers = [*fixed, ("ce_id", event_id.encode()), ("ce_time", time)]
        if further:
            for name, text in further.items():
                headers.append((name, text.encode()))
        return headers


@lru_cache(4096)
def _iso_second(second: int) -> bytes:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()
