"""Ask Kafka how far the store's tables hold the log: the offsets that the `store` job has committed."""

from collections import deque

from confluent_kafka import TopicPartition

from stepstream.config import KafkaSettings
from stepstream.services.control.statistics import Position
from stepstream.topics.catalogue import LABELED_TRAJECTORIES
from stepstream.topics.client import consumer

SINK_GROUP = "stepstream-store"
_CALL_S = 10.0
_SAMPLES = 1000


class SinkPosition:
    """Follows the position of the `store` job, without being in its group. Use it from one thread."""

    def __init__(self, kafka: KafkaSettings) -> None:
        """Connect lazily."""
        self._consumer = consumer(kafka, {"group.id": SINK_GROUP, "enable.auto.commit": False})
        self._complete_until_us = 0
        self._ends: deque[tuple[int, dict[int, int]]] = deque(maxlen=_SAMPLES)
        """Times of earlier calls and the ends of the partitions then, the oldest first."""
        self._reached: dict[int, int] = {}
        """Offset of each partition at the last call."""

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def has_moved(self) -> bool:
        """Return True if the tables hold more of the log than at the last `ask`: one request.

        Raises:
            KafkaException: no broker answers.
        """
        partitions = [TopicPartition(LABELED_TRAJECTORIES, number) for number in self._reached]
        found = self._consumer.committed(partitions, timeout=_CALL_S) if partitions else []
        return any(one.offset > self._reached[one.partition] for one in found)

    def ask(self, now_us: int) -> Position:
        """Return the position. The tables are complete until the newest call whose ends of the log they have reached.

        Raises:
            KafkaException: no broker answers, or a right is missing.
        """
        topic = self._consumer.list_topics(LABELED_TRAJECTORIES, timeout=_CALL_S).topics[LABELED_TRAJECTORIES]
        partitions = [TopicPartition(LABELED_TRAJECTORIES, number) for number in sorted(topic.partitions)]
        reached: dict[int, int] = {}
        ends: dict[int, int] = {}
        for one in self._consumer.committed(partitions, timeout=_CALL_S):
            begin, end = self._consumer.get_watermark_offsets(
                TopicPartition(LABELED_TRAJECTORIES, one.partition), timeout=_CALL_S
            )
            reached[one.partition] = max(begin, one.offset)  # nothing is committed: below 0
            ends[one.partition] = end
        self._ends.append((now_us, ends))
        while self._ends and all(reached[number] >= end for number, end in self._ends[0][1].items()):
            self._complete_until_us = self._ends.popleft()[0]
        self._reached = reached
        text = ",".join(f"{number}={offset}" for number, offset in reached.items())
        return Position(f"{LABELED_TRAJECTORIES}:{text}", self._complete_until_us)
