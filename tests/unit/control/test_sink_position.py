"""Check up to which time the store's tables count as complete, while the log grows all the time."""

from types import SimpleNamespace
from typing import Any

from confluent_kafka import TopicPartition

from stepstream.config import Settings
from stepstream.services.control.sink_position import SinkPosition
from stepstream.topics.catalogue import LABELED_TRAJECTORIES


class Broker:
    """Partitions with an end and a committed offset, in place of a consumer."""

    def __init__(self, partitions: int) -> None:
        self.ends, self.committed_to = [0] * partitions, [-1001] * partitions

    def list_topics(self, topic: str, timeout: float) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=dict.fromkeys(range(len(self.ends))))})

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition(one.topic, one.partition, self.committed_to[one.partition]) for one in partitions]

    def get_watermark_offsets(self, one: TopicPartition, timeout: float) -> tuple[int, int]:
        return 0, self.ends[one.partition]


def position(broker: Broker) -> SinkPosition:
    found = SinkPosition(Settings().kafka)
    found.close()
    found._consumer = broker  # type: ignore[assignment]
    return found


def test_tables_are_complete_up_to_the_newest_call_whose_ends_they_reached_under_steady_traffic() -> None:
    broker = Broker(2)
    asked = position(broker)
    assert asked.ask(1) == (f"{LABELED_TRAJECTORIES}:0=0,1=0", 1)
    for at in range(2, 50):  # the job is always two calls behind the log
        broker.ends = [10 * at, 7 * at]
        broker.committed_to = [10 * (at - 2), 7 * (at - 2)]
        assert asked.ask(at).complete_until_us == max(1, at - 2)


def test_the_tables_have_moved_once_a_partition_holds_more_than_at_the_last_call() -> None:
    broker = Broker(2)
    asked = position(broker)
    assert not asked.has_moved(), "nothing is known yet"
    broker.ends, broker.committed_to = [5, 5], [3, 5]
    asked.ask(1)
    assert not asked.has_moved()
    broker.committed_to = [4, 5]
    assert asked.has_moved()
    assert asked.has_moved(), "until the next call"
    asked.ask(2)
    assert not asked.has_moved()


def test_one_partition_that_is_behind_keeps_the_tables_incomplete() -> None:
    broker = Broker(2)
    asked = position(broker)
    broker.ends, broker.committed_to = [5, 5], [5, 4]
    assert asked.ask(10).complete_until_us == 0
    broker.ends, broker.committed_to = [9, 6], [9, 5]
    assert asked.ask(20).complete_until_us == 10
    broker.committed_to = [9, 6]
    assert asked.ask(30).complete_until_us == 30
