"""Reads given stretches of the log beside Faust: to rebuild state, and to fill gaps in what Faust delivers."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from stepstream.config import KafkaSettings
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.retry import Cancelled, retry_while
from stepstream.topics.client import client_config

_POLL_S = 0.05
_CALL_S = 10.0
_BATCH = 2000

Stretches = Mapping[tuple[str, int], tuple[int, int]]
"""Offsets [begin, end) to read, by (topic, partition)."""

T = TypeVar("T")


class LogReader:
    """A consumer outside the group's assignment. Use from one thread."""

    def __init__(self, kafka: KafkaSettings, group: str, cancelled: Callable[[], bool]) -> None:
        """A broker that is away is waited for until `cancelled` is true; then `Cancelled` is raised."""
        self._cancelled = cancelled
        self._partitions: dict[str, int] = {}
        self._consumer = Consumer(
            client_config(kafka)
            | {
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
                "fetch.message.max.bytes": 16 * 1_048_576,
            }
        )
        self._admin = AdminClient(client_config(kafka))

    def close(self) -> None:
        """Frees the connection."""
        self._consumer.close()

    def identity(self, topics: Sequence[str]) -> str:
        """A digest of the topics' ids: another one means another log behind the same names."""

        def ask() -> list[str]:
            described = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=_CALL_S)
            return sorted(f"{name}={future.result().topic_id}" for name, future in described.items())

        return hashlib.sha256("\n".join(self._patiently(ask)).encode()).hexdigest()[:32]

    def committed(self, topics: Sequence[str], partition: int) -> dict[str, int]:
        """The group's committed offsets of one partition, by topic; topics without one are left out."""
        wanted = [TopicPartition(topic, partition) for topic in topics]
        found = self._patiently(lambda: self._consumer.committed(wanted, timeout=_CALL_S))
        return {entry.topic: entry.offset for entry in found if entry.offset >= 0}

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """First offset and the one after the last."""
        low, high = self._patiently(
            lambda: self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_CALL_S)
        )
        return low, high

    def partition_of(self, topic: str, key: str) -> int:
        """The partition of a key, as every producer of ours and Kafka's own choose it."""
        from aiokafka.partitioner import murmur2  # all of aiokafka comes with it: the learner reads without

        if topic not in self._partitions:
            metadata = self._patiently(lambda: self._consumer.list_topics(topic, timeout=_CALL_S))
            self._partitions[topic] = len(metadata.topics[topic].partitions)
        hashed: int = murmur2(key.encode())
        return (hashed & 0x7FFFFFFF) % self._partitions[topic]

    def since(self, topic: str, timestamp_ms: int) -> dict[tuple[str, int], tuple[int, int]]:
        """The stretches of a topic from a time (0: the beginning) to now, for `read`."""
        metadata = self._patiently(lambda: self._consumer.list_topics(topic, timeout=_CALL_S))
        stretches = {}
        for partition in metadata.topics[topic].partitions:
            low, high = self.bounds(topic, partition)
            if timestamp_ms > 0:
                asked = [TopicPartition(topic, partition, timestamp_ms)]
                [found] = self._patiently(lambda asked=asked: self._consumer.offsets_for_times(asked, timeout=_CALL_S))  # type: ignore[misc]
                low = max(low, found.offset) if found.offset >= 0 else high
            stretches[topic, partition] = low, high
        return stretches

    def read(self, stretches: Stretches) -> Iterator[list[Record]]:
        """The records of the stretches in batches, in order inside each partition.

        Offsets whose record is gone (retention, compaction) or is none (transaction markers) are passed over.
        """
        ends = {tp: end for tp, (begin, end) in stretches.items() if begin < end}
        self._consumer.assign([TopicPartition(*tp, stretches[tp][0]) for tp in ends])
        try:
            while ends:
                messages = self._consumer.consume(_BATCH, _POLL_S)
                if self._cancelled():
                    raise Cancelled
                batch, done = [], set()
                for message in messages:
                    tp, offset = _place(message)
                    fault = message.error()
                    if fault is None:
                        if offset < ends.get(tp, 0):
                            batch.append(Record(*tp, offset, message.timestamp()[1], message.key(), message.value()))
                        if offset + 1 >= ends.get(tp, 0):
                            done.add(tp)
                    elif fault.code() == KafkaError._PARTITION_EOF:
                        done.add(tp)
                    elif not fault.retriable() and fault.code() != KafkaError._ALL_BROKERS_DOWN:
                        raise KafkaException(fault)
                if batch:
                    yield batch
                for tp in done & ends.keys():
                    del ends[tp]
                    self._consumer.incremental_unassign([TopicPartition(*tp)])
        finally:
            self._consumer.unassign()

    def _patiently(self, call: Callable[[], T]) -> T:
        return retry_while(call, KafkaException, self._cancelled)


def _place(message: Message) -> tuple[tuple[str, int], int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    return (topic or "", -1 if partition is None else partition), -1 if offset is None else offset
