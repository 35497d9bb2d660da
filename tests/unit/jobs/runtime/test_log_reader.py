"""Read committed offsets that stay pending: the caller ends its own transactions after each read without an answer."""

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from stepstream.config import Settings
from stepstream.jobs.runtime import log_reader
from stepstream.jobs.runtime.log_reader import Committed, LogReader


class PendingOffsets:
    """A consumer whose reads of offsets time out until the transactions are settled twice."""

    def __init__(self) -> None:
        self.settled = 0

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        if self.settled < 2:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return [TopicPartition(one.topic, one.partition, 7, metadata="3") for one in partitions]

    def settle(self) -> None:
        self.settled += 1


def test_a_read_without_an_answer_settles_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    pending = PendingOffsets()
    monkeypatch.setattr(log_reader, "consumer", lambda *_: pending)
    reader = LogReader(Settings().kafka, "group", lambda: False)
    assert reader.committed(["steps"], [0], pending.settle) == {("steps", 0): Committed(7, "3")}
    assert pending.settled == 2
