"""Read offset ranges of the log and the offsets of a group beside Faust, to rebuild state."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from stepstream.config import KafkaSettings
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.retry import Cancelled, retry_while
from stepstream.topics.client import admin_client, consumer

_POLL_S = 0.05
_CALL_S = 10.0
_BATCH = 2000

OffsetRanges = Mapping[tuple[str, int], tuple[int, int]]
"""Offsets [begin, end), by (topic, partition)."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Committed:
    """An offset that the group committed, with the text beside it."""

    offset: int
    metadata: str = ""


def partition_number(key: str, partitions: int) -> int:
    """Return the partition of a key by Kafka's default partitioner (murmur2), which every producer here uses."""
    from aiokafka.partitioner import murmur2  # imports all of aiokafka, which the learner does not need

    hashed: int = murmur2(key.encode())
    return (hashed & 0x7FFFFFFF) % partitions


class LogReader:
    """A consumer outside the group's assignment. Every method waits for the brokers. Use from one thread."""

    def __init__(self, kafka: KafkaSettings, group: str, cancelled: Callable[[], bool]) -> None:
        """While the brokers are unavailable, methods retry until `cancelled` is true; then they raise `Cancelled`."""
        self._cancelled = cancelled
        self._partitions: dict[str, int] = {}
        self._consumer = consumer(
            kafka,
            {
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
                "fetch.message.max.bytes": 16 * 1_048_576,
            },
        )
        self._admin = admin_client(kafka)

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def identity(self, topics: Sequence[str]) -> str:
        """Return a digest of the topics' ids; it changes if a topic is deleted and created again."""

        def describe() -> list[str]:
            described = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=_CALL_S)
            return sorted(f"{name}={future.result().topic_id}" for name, future in described.items())

        return hashlib.sha256("\n".join(self._retry(describe)).encode()).hexdigest()[:32]

    def committed(
        self, topics: Iterable[str], partitions: Iterable[int], settle: Callable[[], None] = lambda: None
    ) -> dict[tuple[str, int], Committed]:
        """Return the group's committed offsets; omit partitions without one.

        Blocks while a transaction that commits offsets of these partitions is open: its outcome decides. `settle` is
        called after each 10 seconds without an answer: the broker may have lost the end of a transaction.
        """
        wanted = [TopicPartition(topic, partition) for partition in partitions for topic in topics]

        def request() -> list[TopicPartition]:
            try:
                return self._consumer.committed(wanted, timeout=_CALL_S)
            except KafkaException as error:
                if error.args[0].code() == KafkaError._TIMED_OUT:
                    settle()
                raise

        committed = self._retry(request) if wanted else []
        found = {}
        for entry in committed:
            if entry.error is not None:
                raise KafkaException(entry.error)
            if entry.offset >= 0:
                found[entry.topic, entry.partition] = Committed(entry.offset, entry.metadata or "")
        return found

    def start_positions(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the offset at which the group reads on in each partition: the committed one, or the first."""
        wanted = list(partitions)
        committed = self.committed({topic for topic, _ in wanted}, {number for _, number in wanted})
        lows = self._offsets(wanted, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        return {tp: max(low, committed[tp].offset if tp in committed else low) for tp, low in lows.items()}

    def ends(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the end offset of each partition; records of open transactions count."""
        return self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def _offsets(self, partitions: Iterable[tuple[str, int]], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        wanted = {TopicPartition(*tp): spec for tp in partitions}

        def request() -> dict[tuple[str, int], int]:
            futures = self._admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_CALL_S
            )
            try:
                return {(tp.topic, tp.partition): future.result().offset for tp, future in futures.items()}
            except KafkaException:
                # After a restart of a broker, the client repeats an old leader epoch until it reads the metadata.
                self._admin.list_topics(timeout=_CALL_S)
                raise

        return self._retry(request) if wanted else {}

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition and the offset after its last record."""
        low, high = self._retry(
            lambda: self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_CALL_S)
        )
        return low, high

    def partition_of(self, topic: str, key: str) -> int:
        """Return the partition of a key."""
        if topic not in self._partitions:
            metadata = self._retry(lambda: self._consumer.list_topics(topic, timeout=_CALL_S))
            self._partitions[topic] = len(metadata.topics[topic].partitions)
        return partition_number(key, self._partitions[topic])

    def since(self, topic: str, timestamp_ms: int) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the offsets of a topic from a time (0: its beginning) to its end as of now.

        Records of open transactions count: `read` waits for their outcome. A committed record may lie behind them.
        """
        metadata = self._retry(lambda: self._consumer.list_topics(topic, timeout=_CALL_S))
        ranges = {}
        ends = self.ends((topic, partition) for partition in metadata.topics[topic].partitions)
        for (_, partition), high in ends.items():
            low, _ = self.bounds(topic, partition)
            if timestamp_ms > 0:
                times = [TopicPartition(topic, partition, timestamp_ms)]
                [first] = self._retry(lambda times=times: self._consumer.offsets_for_times(times, timeout=_CALL_S))  # type: ignore[misc]
                low = max(low, first.offset) if first.offset >= 0 else high
            ranges[topic, partition] = low, high
        return ranges

    def read(self, ranges: OffsetRanges) -> Iterator[list[Record]]:
        """Yield the records of offset ranges in batches, in order inside each partition.

        Skips offsets whose record is deleted (retention, compaction) and transaction markers.
        """
        ends = {tp: end for tp, (begin, end) in ranges.items() if begin < end}
        self._consumer.assign([TopicPartition(*tp, ranges[tp][0]) for tp in ends])
        try:
            while ends:
                messages = self._consumer.consume(_BATCH, _POLL_S)
                if self._cancelled():
                    raise Cancelled
                batch, done = [], set()
                for message in messages:
                    tp, offset = _position(message)
                    fault = message.error()
                    if fault is None:
                        if offset < ends.get(tp, 0):
                            batch.append(Record(*tp, offset, message.timestamp()[1], message.key(), message.value()))
                        if offset + 1 >= ends.get(tp, 0):
                            done.add(tp)
                    elif fault.code() == KafkaError._PARTITION_EOF:
                        # Before the end of the range: records of an open transaction follow.
                        if offset >= ends.get(tp, 0):
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

    def _retry(self, call: Callable[[], T]) -> T:
        return retry_while(call, KafkaException, self._cancelled)


def _position(message: Message) -> tuple[tuple[str, int], int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    return (topic or "", -1 if partition is None else partition), -1 if offset is None else offset
