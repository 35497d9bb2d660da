"""Copy records to the topics of another prefix, each once: byte for byte, partitioned anew by key.

A transaction holds a batch of copies and the positions after it in source and target, in the consumer group
`stepstream-copy` of the target. So a killed copy goes on where its last transaction ended, and notices what others
wrote to the target meanwhile. One consumer reads all partitions, and the records of a key come from one partition, so
they keep their order.
"""

import time
from contextlib import AbstractContextManager
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, KafkaException, Message, TopicPartition

from stepstream.config import Settings
from stepstream.core.process import Fatal
from stepstream.jobs.runtime.fetch import GroupMember
from stepstream.jobs.runtime.log_reader import LogReader
from stepstream.topics import client
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.producer import DeliveryFailed

_BATCH = 1_000
_POLL_S = 0.5
_CALL_S = 30.0
_NAME = "stepstream-copy"
_FINISHED = "finished"
"""Text beside the committed positions of a copy that is finished."""

COPIED = [name for name, topic in TOPICS.items() if topic.copied]
"""Topics that are copied."""


class CopyRefused(Fatal):
    """The log cannot be copied as asked; the message gives the fact and the remedy."""


class LogCopier(AbstractContextManager["LogCopier"]):
    """Copies from one prefix to that of the settings. Use from one thread; close it, or use it as a context manager."""

    def __init__(self, settings: Settings, source: str) -> None:
        """Connect lazily; `source` is the prefix to copy from. It may be empty.

        Raises:
            CopyRefused: both prefixes are the same.
        """
        self._source, self._target = source, settings.kafka.prefix
        if self._source == self._target:
            raise CopyRefused(f"'{source}' is the prefix of this Stepstream: set STEPSTREAM_KAFKA_PREFIX to a new one")
        # Both prefixes meet here, so the clients use the names in the cluster.
        kafka = settings.kafka.model_copy(update={"prefix": ""})
        self._group = self._target + _NAME
        self._reader = LogReader(kafka, self._group, lambda: False)
        self._consumer = client.consumer(
            kafka,
            {
                "group.id": self._group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "fetch.message.max.bytes": 16 * 1_048_576,
            },
        )
        self._producer = client.producer(
            kafka,
            {
                "transactional.id": self._group,
                "acks": "all",
                "compression.type": "lz4",
                "partitioner": "murmur2_random",
                "message.max.bytes": max(topic.max_message_bytes for topic in TOPICS.values()),
                "retry.backoff.ms": 2,
                "retry.backoff.max.ms": 100,
            },
        )
        self._positions: dict[tuple[str, int], int] = {}
        """Offset of the next record to copy, by partition of the source."""
        self._written: dict[tuple[str, int], list[int]] = {}
        """Offsets of the open transaction's copies, by partition of the target."""
        self._next: dict[tuple[str, int], int] = {}
        """Offset of the next copy, by partition of the target."""
        self.copied = 0
        """Records copied by this process."""

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
        self._reader.close()

    def start(self) -> None:
        """Fence an earlier copy, and go on after its last transaction; begin a copy if there was none.

        Raises:
            CopyRefused: topics are missing, the target has other records, or the copy is finished.
            KafkaException: no broker answers.
        """
        source, target = self._partitions(self._source), self._partitions(self._target)
        self._producer.init_transactions(_CALL_S)
        committed = self._reader.committed({topic for topic, _ in source}, {number for _, number in source})
        if any(one.metadata == _FINISHED for one in committed.values()):
            raise CopyRefused(
                f"the copy from '{self._source}' to '{self._target}' is finished: start the processes under the new "
                "prefix"
            )
        self._next = self._reader.ends(target)
        self._positions = self._reader.start_positions(source)
        if committed:
            self._check_since_last_copy()
        else:
            self._check_empty()
            # Before the first copy, so that the copies of a killed process are recognised.
            self._write([], self._positions | self._next)
        self._consumer.assign([TopicPartition(*one, offset) for one, offset in self._positions.items()])

    def _check_empty(self) -> None:
        full = sorted(f"{topic}[{partition}]" for (topic, partition), end in self._next.items() if end > 0)
        if full:
            raise CopyRefused(
                f"{', '.join(full[:3])} of the target have records that no copy from '{self._source}' wrote: copy to a "
                "new prefix, and start its producers and jobs after the copy"
            )

    def _check_since_last_copy(self) -> None:
        """Check that nobody wrote to the target since the last transaction; skip the records of aborted ones."""
        topics, numbers = {topic for topic, _ in self._next}, {number for _, number in self._next}
        ends = {one: entry.offset for one, entry in self._reader.committed(topics, numbers).items()}
        since = {one: (ends[one], end) for one, end in self._next.items() if one in ends}  # an earlier release: none
        for batch in self._reader.read(since):
            self._refuse_writer(batch[0].topic)

    def _partitions(self, prefix: str) -> list[tuple[str, int]]:
        """Return the partitions of all copied topics of a prefix, under their names in the cluster.

        Raises:
            CopyRefused: a topic is missing.
        """
        existing = self._consumer.list_topics(timeout=_CALL_S).topics
        if missing := [prefix + name for name in COPIED if prefix + name not in existing]:
            raise CopyRefused(f"the cluster lacks {', '.join(missing)}: run `stepstream topics apply` with that prefix")
        return [(prefix + name, number) for name in COPIED for number in sorted(existing[prefix + name].partitions)]

    def lag(self) -> int:
        """Return the number of offsets that are not copied yet; the end of each transaction counts as one."""
        ends = self._reader.ends(self._positions)
        return sum(max(0, end - self._positions[one]) for one, end in ends.items())

    def copy_batch(self) -> int:
        """Copy the next records, or wait for them for half a second; return their number when they are durable.

        Raises:
            CopyRefused: something else writes to the target.
            DeliveryFailed, KafkaException: a broker is unavailable: run the copy again.
        """
        messages = []
        for message in self._consumer.consume(_BATCH, _POLL_S):
            fault, offset = message.error(), message.offset()
            topic, partition = message.topic(), message.partition()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            if fault is None:
                messages.append(message)
                self._positions[topic, partition] = offset + 1
            elif fault.code() == KafkaError._PARTITION_EOF:
                self._positions[topic, partition] = offset
            elif not fault.retriable() and fault.code() != KafkaError._ALL_BROKERS_DOWN:
                raise KafkaException(fault)
        if messages:
            moved = {(message.topic() or "", message.partition() or 0) for message in messages}
            self._write(messages, {one: self._positions[one] for one in moved})
            self.copied += len(messages)
        return len(messages)

    def copy_all(self) -> None:
        """Copy until the end of the source; raise as `copy_batch`."""
        while self.copy_batch() or self.lag():
            pass

    def _write(self, messages: list[Message], positions: dict[tuple[str, int], int]) -> None:
        """Write copies and the positions after them in one transaction."""
        self._begin()
        for message in messages:
            kind, timestamp_ms = message.timestamp()
            self._produce(
                self._target + (message.topic() or "").removeprefix(self._source),
                key=message.key(),
                value=message.value(),
                headers=message.headers() or [],
                **({"timestamp": timestamp_ms} if kind == TIMESTAMP_CREATE_TIME else {}),
            )
        self._commit(positions)

    def delete(self, keys: list[tuple[str, bytes]]) -> None:
        """Delete keys of compacted topics of the target, given as topic and key, in one transaction."""
        if not keys:
            return
        self._begin()
        for topic, key in keys:
            self._produce(self._target + topic, key=key, value=None)
        self._commit({})

    def finish(self, groups: dict[str, list[str]]) -> None:
        """Commit the ends of the target's topics as the positions of groups, and mark the copy as finished, at once.

        Args:
            groups: topics by consumer group, both without prefix.
        """
        self._producer.begin_transaction()
        for group, topics in groups.items():
            ends = [TopicPartition(*one, end) for one, end in self._next.items()]
            own = [one for one in ends if one.topic.removeprefix(self._target) in topics]
            self._send_positions(self._target + group, own)
        last = [TopicPartition(*one, offset, _FINISHED) for one, offset in self._positions.items()]
        self._send_positions(self._group, last)
        self._producer.commit_transaction(_CALL_S)

    def check_untouched(self) -> None:
        """Check that the target has the copies alone.

        Raises:
            CopyRefused: it has other records.
        """
        until_s = time.monotonic() + _CALL_S
        while True:
            ends = self._reader.ends(self._next)
            behind = [one for one, end in self._next.items() if ends[one] < end]
            for (topic, partition), end in self._next.items():
                if ends[topic, partition] > end:
                    self._refuse_writer(topic)
            if not behind:
                return
            if time.monotonic() > until_s:
                raise CopyRefused(
                    f"{behind[0][0]} ends at offset {ends[behind[0]]}, below its copies: was it recreated?"
                )
            time.sleep(_POLL_S)  # the mark at the end of the last transaction is being written

    def _begin(self) -> None:
        self._written.clear()
        self._producer.begin_transaction()

    def _produce(self, topic: str, **record: Any) -> None:
        while True:
            try:
                return self._producer.produce(topic, on_delivery=self._delivered, **record)
            except BufferError:
                self._producer.poll(_POLL_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._written.setdefault((message.topic() or "", message.partition() or 0), []).append(
                message.offset() or 0
            )

    def _send_positions(self, group: str, positions: list[TopicPartition]) -> None:
        member = GroupMember(group, -1, "", None).encode()
        self._producer.send_offsets_to_transaction(positions, member, _CALL_S)

    def _commit(self, positions: dict[tuple[str, int], int]) -> None:
        """Commit the open transaction with positions of the source and the ends of its copies in the target."""
        if self._producer.flush(_CALL_S):
            raise DeliveryFailed(f"copies were not acknowledged within {_CALL_S:g} s: run the copy again")
        ends = {}
        for (topic, partition), offsets in self._written.items():
            begin = self._next[topic, partition]
            if sorted(offsets) != list(range(begin, begin + len(offsets))):
                self._refuse_writer(topic)
            ends[topic, partition] = begin + len(offsets) + 1  # the end of the transaction takes an offset too
        self._send_positions(self._group, [TopicPartition(*one, offset) for one, offset in (positions | ends).items()])
        self._producer.commit_transaction(_CALL_S)
        self._next |= ends

    def _refuse_writer(self, topic: str) -> None:
        raise CopyRefused(
            f"something else writes to {topic}: stop it, delete the topics and groups with the prefix "
            f"'{self._target}', and copy again"
        )
