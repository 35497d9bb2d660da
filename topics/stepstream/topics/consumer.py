"""Read events outside Faust: in a group that commits after the effect, or from whole topics without a group."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from stepstream.config import KafkaSettings
from stepstream.topics.client import append_time_us, consumer
from stepstream.topics.codec import Codec, CodecError, RegistryUnavailable

log = logging.getLogger(__name__)

_OFFSETS_DEADLINE_S = 30.0
_NO_LEADER = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError._UNKNOWN_PARTITION,  # the client's code for a listed partition without a leader
)


@dataclass(frozen=True, slots=True)
class Event:
    """One record of the log with its position. If it cannot be read, `record` is None and `error` is set."""

    topic: str
    partition: int
    offset: int
    key: str
    record: Any
    error: CodecError | None = None
    value: bytes = b""
    """The encoded record, for a dead letter."""
    written_us: int | None = None
    """See `append_time_us`."""


class EventConsumer(AbstractContextManager["EventConsumer"]):
    """Polls events of catalogue topics. Use it from one thread; close it, or use it as a context manager."""

    def __init__(
        self,
        kafka: KafkaSettings,
        codec: Codec,
        *,
        group: str | None = None,
        wanted: Callable[[str, int, int], bool] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Connect lazily.

        Args:
            kafka: settings of the cluster.
            codec: decodes the records.
            group: consumer group, for `subscribe` and `commit`; None: for `follow`.
            wanted: returns True for the topic, partition and offset of a record to return; the others are skipped.
            config: further configuration of the client.

        Raises:
            SettingsError: a setting is invalid; see `reporting_invalid_settings`.
        """
        self._codec, self._wanted = codec, wanted
        self._ends: dict[tuple[str, int], int] = {}
        self._begins: dict[tuple[str, int], int] = {}
        self._positions: dict[tuple[str, int], int] = {}
        self._after_polled: dict[tuple[str, int], int] = {}
        self._consumer = consumer(
            kafka,
            {
                "group.id": group or "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "fetch.message.max.bytes": 16 * 1_048_576,
                "enable.partition.eof": group is None,
                **(config or {}),
            },
        )

    def subscribe(self, topics: Sequence[str]) -> None:
        """Join the group; start at its committed offsets, else at the beginning."""
        self._consumer.subscribe(list(topics))

    def follow(
        self,
        topics: Iterable[str],
        start: Mapping[tuple[str, int], int] | None = None,
        until: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        """Read every partition of the topics without a group.

        Args:
            topics: existing topics of the catalogue.
            start: first offset by (topic, partition); default: the beginning.
            until: offset after the last record that `is_caught_up` awaits, by (topic, partition); partitions without
                one are not read. Default: the present ends of all.
        """
        assigned = []
        for topic in topics:
            for partition in self.partitions(topic):
                if until is not None and (topic, partition) not in until:
                    continue
                low, high = self._offset_range(topic, partition)
                high = min(high, (until or {}).get((topic, partition), high))
                begin = max(low, (start or {}).get((topic, partition), low))
                self._ends[topic, partition] = high
                self._begins[topic, partition] = self._positions[topic, partition] = begin
                self._after_polled[topic, partition] = begin
                assigned.append(TopicPartition(topic, partition, begin if begin else OFFSET_BEGINNING))
        self._consumer.assign(assigned)

    def partitions(self, topic: str) -> list[int]:
        """Return the partition numbers of a topic.

        Raises:
            KafkaException: the topic does not exist or no broker answers within 30 seconds.
        """
        metadata = self._consumer.list_topics(topic, timeout=30).topics[topic]
        if metadata.error is not None:
            raise KafkaException(metadata.error)
        return sorted(metadata.partitions)

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the current end offset of each partition."""
        return {partition: end for (_, partition), (_, end) in self.offset_ranges(topic).items()}

    def offset_ranges(self, topic: str) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the current first offset and end of each (topic, partition)."""
        return {(topic, partition): self._offset_range(topic, partition) for partition in self.partitions(topic)}

    def poll(self, limit: int, timeout_s: float) -> list[Event]:
        """Return up to `limit` events after at most `timeout_s` seconds; invalid records carry their error.

        While the registry does not answer, the call blocks: the record may be valid.

        Raises:
            KafkaException: a permanent error, as a missing topic.
        """
        return [event for message in self._consumer.consume(limit, timeout_s) if (event := self._event(message))]

    def is_caught_up(self) -> bool:
        """Return True if all records from before the call of `follow` have been polled."""
        return all(self._positions[partition] >= end for partition, end in self._ends.items())

    def position(self, topic: str, partition: int) -> int:
        """Return the offset of the next record to poll, after `follow`."""
        return self._positions[topic, partition]

    def has_records_beyond(self, handled: Mapping[tuple[str, int], int]) -> bool:
        """Return True if the newest known end offsets are beyond the handled ones. It does not block.

        Args:
            handled: offset after the last handled record, by (topic, partition); default: none since `follow`.
        """
        for partition, end in self._ends.items():
            reached = handled.get(partition, self._begins[partition])
            if reached >= self._after_polled[partition]:
                # The offsets up to the position hold no record, as the markers of transactions.
                reached = max(reached, self._positions[partition])
            # Below 0 before the first fetch.
            _, cached_end = self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
            if reached < max(end, cached_end):
                return True
        return False

    def commit(self) -> None:
        """Commit everything polled so far. Call it when its effect is durable."""
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NO_OFFSET:
                raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group and close the connection."""
        self._consumer.close()

    def _offset_range(self, topic: str, partition: int) -> tuple[int, int]:
        """Return first and end offset of a partition; retry while a leader is elected."""
        deadline = time.monotonic() + _OFFSETS_DEADLINE_S
        while True:
            try:
                return self._consumer.get_watermark_offsets(
                    TopicPartition(topic, partition), timeout=_OFFSETS_DEADLINE_S
                )
            except KafkaException as error:
                if error.args[0].code() not in _NO_LEADER or time.monotonic() > deadline:
                    raise
            self._consumer.list_topics(topic, timeout=_OFFSETS_DEADLINE_S)  # fetches the new leader
            time.sleep(0.1)

    def _event(self, message: Message) -> Event | None:
        fault = message.error()
        if fault is not None and fault.code() != KafkaError._PARTITION_EOF:
            if fault.retriable() or fault.code() == KafkaError._ALL_BROKERS_DOWN:
                return None
            raise KafkaException(fault)
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        if fault is not None:  # the end, which may lie behind the commit marker of a transaction
            self._positions[topic, partition] = offset
            return None
        self._positions[topic, partition] = self._after_polled[topic, partition] = offset + 1
        if self._wanted is not None and not self._wanted(topic, partition, offset):
            return None
        key = (message.key() or b"").decode(errors="replace")
        value = message.value() or b""
        while True:
            try:
                record = self._codec.decode(topic, message.value())
                return Event(topic, partition, offset, key, record, None, value, append_time_us(message))
            except CodecError as error:
                return Event(topic, partition, offset, key, None, error, value)
            except RegistryUnavailable as error:
                log.warning("waiting for the schema registry: %s", error)
                time.sleep(1.0)
