"""Reads events outside Faust: in a group that commits after the effect, or following whole topics without one."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from stepstream.config import KafkaSettings
from stepstream.topics.client import client_config, usable_settings
from stepstream.topics.closing import Closing
from stepstream.topics.codec import Codec, CodecError, RegistryUnavailable

log = logging.getLogger(__name__)

BOUNDS_DEADLINE_S = 30.0
ELECTING = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError._UNKNOWN_PARTITION,  # it was listed, so this is the client's own word for one without a leader
)


@dataclass(frozen=True, slots=True)
class Event:
    """One record of the log with its place; `record` is None where it could not be read, and `error` says why."""

    topic: str
    partition: int
    offset: int
    key: str
    record: Any
    error: CodecError | None = None
    value: bytes = b""
    """The record's bytes, for a dead letter."""


class EventConsumer(Closing):
    """Polls events of catalogue topics. Use from one thread; close it, or use it as a context manager."""

    def __init__(self, kafka: KafkaSettings, codec: Codec, *, group: str | None = None) -> None:
        """A consumer in `group` (then call `subscribe` and `commit`), or without one (then call `follow`).

        Raises:
            SettingsError: as `usable_settings`.
        """
        self._codec = codec
        self._ends: dict[tuple[str, int], int] = {}
        self._begins: dict[tuple[str, int], int] = {}
        self._positions: dict[tuple[str, int], int] = {}
        with usable_settings():
            self._consumer = Consumer(
                client_config(kafka)
                | {
                    "group.id": group or "unused",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "session.timeout.ms": 6000,
                    "fetch.message.max.bytes": 16 * 1_048_576,
                }
            )

    def subscribe(self, topics: Sequence[str]) -> None:
        """Joins the group; starts at its committed offsets, or at the beginning."""
        self._consumer.subscribe(list(topics))

    def follow(self, topics: Iterable[str], start: Mapping[tuple[str, int], int] | None = None) -> None:
        """Reads every partition of the topics, without a group.

        Args:
            topics: topics of the catalogue, which must exist.
            start: offset to start at, by (topic, partition); elsewhere the beginning.
        """
        assigned = []
        for topic in topics:
            for partition in self.partitions(topic):
                low, high = self._bounds(topic, partition)
                begin = max(low, (start or {}).get((topic, partition), low))
                self._ends[topic, partition] = high
                self._begins[topic, partition] = self._positions[topic, partition] = begin
                assigned.append(TopicPartition(topic, partition, begin if begin else OFFSET_BEGINNING))
        self._consumer.assign(assigned)

    def partitions(self, topic: str) -> list[int]:
        """Partition numbers of a topic.

        Raises:
            KafkaException: the topic does not exist or no broker answers within 30 seconds.
        """
        metadata = self._consumer.list_topics(topic, timeout=30).topics[topic]
        if metadata.error is not None:
            raise KafkaException(metadata.error)
        return sorted(metadata.partitions)

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Offset after the last record of each partition, as of now."""
        return {partition: self._bounds(topic, partition)[1] for partition in self.partitions(topic)}

    def poll(self, most: int, timeout_s: float) -> list[Event]:
        """Up to `most` events, waiting at most `timeout_s` seconds; unreadable ones carry their error.

        Waits for a registry that does not answer, since a record that it would explain may be sound.

        Raises:
            KafkaException: a fault that does not mend itself, as a topic that does not exist.
        """
        return [event for message in self._consumer.consume(most, timeout_s) if (event := self._event(message))]

    def caught_up(self) -> bool:
        """Whether everything that was there when `follow` was called has been polled."""
        return all(self._positions[place] >= end for place, end in self._ends.items())

    def position(self, topic: str, partition: int) -> int:
        """Offset of the next record to be polled, after `follow`."""
        return self._positions[topic, partition]

    def has_beyond(self, handled: Mapping[tuple[str, int], int]) -> bool:
        """Whether there are records that were not handled, as far as the broker has told; at once.

        Args:
            handled: offset after the last one, by (topic, partition); elsewhere none since `follow`.
        """
        for place, end in self._ends.items():
            _, told = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)  # below 0: nothing yet
            if handled.get(place, self._begins[place]) < max(end, told):
                return True
        return False

    def commit(self) -> None:
        """Commits everything polled so far; call it when its effect is durable."""
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NO_OFFSET:
                raise

    def close(self) -> None:
        """Leaves the group and frees the connection."""
        self._consumer.close()

    def _bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """First and next offset of a partition; a leader that was just elected is asked again."""
        deadline = time.monotonic() + BOUNDS_DEADLINE_S
        while True:
            try:
                return self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=BOUNDS_DEADLINE_S)
            except KafkaException as error:
                if error.args[0].code() not in ELECTING or time.monotonic() > deadline:
                    raise
            self._consumer.list_topics(topic, timeout=BOUNDS_DEADLINE_S)  # learns the new leader
            time.sleep(0.1)

    def _event(self, message: Message) -> Event | None:
        fault = message.error()
        if fault is not None:
            if fault.retriable() or fault.code() in (KafkaError._PARTITION_EOF, KafkaError._ALL_BROKERS_DOWN):
                return None
            raise KafkaException(fault)
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        self._positions[topic, partition] = offset + 1
        key = (message.key() or b"").decode(errors="replace")
        value = message.value() or b""
        while True:
            try:
                return Event(topic, partition, offset, key, self._codec.decode(topic, message.value()), None, value)
            except CodecError as error:
                return Event(topic, partition, offset, key, None, error, value)
            except RegistryUnavailable as error:
                log.warning("waiting for the schema registry: %s", error)
                time.sleep(1.0)
