"""Publishes events: idempotent, acknowledged by all in-sync replicas, keyed as the catalogue says."""

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from stepstream.config import KafkaSettings
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.client import client_config, usable_settings
from stepstream.topics.codec import Codec

log = logging.getLogger(__name__)

Delivered = Callable[[KafkaError | None, Message], None]


@lru_cache(4096)
def _second(second: int) -> bytes:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()


class DeliveryFailed(Exception):
    """Events that Kafka refused for good; the effect must not be taken as durable."""


class EventProducer:
    """Sends records of catalogue topics. Safe to share between threads.

    A broker that cannot be reached is waited for without limit: events stay queued in memory and nothing is given up,
    so `flush` returns only when all of them are durable.
    """

    def __init__(self, kafka: KafkaSettings, codec: Codec, source: str, *, linger_ms: float = 5.0) -> None:
        """Connects lazily; `source` is the `ce_source` of every event, as `gateway/0.1.0`.

        Raises:
            SettingsError: as `usable_settings`.
        """
        self._codec = codec
        self._source = source.encode()
        self._failures: list[str] = []
        self._fixed: dict[str, list[tuple[str, str | bytes | None]]] = {}
        with usable_settings():
            self._producer = Producer(
                client_config(kafka)
                | {
                    "enable.idempotence": True,
                    "acks": "all",
                    "linger.ms": linger_ms,
                    "compression.type": "lz4",
                    "partitioner": "murmur2_random",
                    "message.timeout.ms": 0,
                    "message.max.bytes": max(topic.max_message_bytes for topic in TOPICS.values()),
                }
            )

    def send(
        self,
        topic: str,
        key: str,
        record: Any,
        *,
        headers: Mapping[str, str] | None = None,
        on_delivery: Delivered | None = None,
    ) -> None:
        """Queues one record; returns at once.

        Args:
            topic: a topic of the catalogue.
            key: the record's key; keys give order.
            record: typed dict of the topic's schema, with an `event_id` and `occurred_at_us`.
            headers: more headers, as `traceparent`.
            on_delivery: called from `poll` or `flush` when the broker has answered.

        Raises:
            Unencodable: the record does not fit its schema.
            RegistryUnavailable: the schema's id is not known yet and the registry does not answer.
            BufferError: the queue is full; call `poll` and try again.
        """
        self.send_encoded(topic, key, self._codec.encode(topic, record), record, headers, on_delivery)

    def send_encoded(
        self,
        topic: str,
        key: str,
        value: bytes,
        record: Any,
        headers: Mapping[str, str] | None = None,
        on_delivery: Delivered | None = None,
    ) -> None:
        """As `send`, with a value that is encoded already."""
        self.send_stamped(topic, key, value, record["event_id"], record["occurred_at_us"], headers, on_delivery)

    def send_stamped(
        self,
        topic: str,
        key: str,
        value: bytes,
        event_id: str,
        occurred_at_us: int,
        headers: Mapping[str, str] | None = None,
        on_delivery: Delivered | None = None,
    ) -> None:
        """As `send_encoded`, without the record."""
        every = self._envelope(topic, event_id, occurred_at_us)
        if headers:
            for name, text in headers.items():
                every.append((name, text.encode()))
        self._producer.produce(
            topic, value=value, key=key.encode(), headers=every, on_delivery=on_delivery or self._note_failure
        )

    def delete(self, topic: str, key: str) -> None:
        """Queues a tombstone: a compacted topic forgets the key. Raises as `send` does."""
        self._producer.produce(topic, value=None, key=key.encode(), on_delivery=self._note_failure)

    def poll(self, timeout_s: float = 0.0) -> int:
        """Serves delivery reports; returns how many."""
        return int(self._producer.poll(timeout_s))

    def flush(self, timeout_s: float | None = None) -> None:
        """Blocks until everything sent is durable.

        Raises:
            DeliveryFailed: Kafka refused some of it, or `timeout_s` seconds passed.
        """
        left = self._producer.flush() if timeout_s is None else self._producer.flush(timeout_s)
        if self._failures:
            failures, self._failures = self._failures, []
            raise DeliveryFailed(f"{len(failures)} events refused by Kafka, the first: {failures[0]}")
        if left:
            raise DeliveryFailed(f"{left} events not acknowledged within {timeout_s} s")

    def __len__(self) -> int:
        """Events queued or in flight."""
        return len(self._producer)

    def _note_failure(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures.append(f"{message.topic()}: {error}")

    def _envelope(self, topic: str, event_id: str, occurred_at_us: int) -> list[tuple[str, str | bytes | None]]:
        fixed = self._fixed.get(topic)
        if fixed is None:
            kind = f"stepstream.{TOPICS[topic].schema}".encode()
            fixed = [("ce_specversion", b"1.0"), ("ce_type", kind), ("ce_source", self._source)]
            fixed.append(("content-type", b"application/avro"))
            self._fixed[topic] = fixed
        second, micros = divmod(occurred_at_us, 1_000_000)
        # As datetime.isoformat writes it, which is slow to do for every event.
        time = b"%b.%06d+00:00" % (_second(second), micros)
        return [*fixed, ("ce_id", event_id.encode()), ("ce_time", time)]
