"""Ask Kafka how far the store's tables hold the log: the offsets that the `store` job has committed."""

from confluent_kafka import TopicPartition

from stepstream.config import KafkaSettings
from stepstream.services.control.statistics import Position
from stepstream.topics.catalogue import LABELED_TRAJECTORIES
from stepstream.topics.client import consumer

SINK_GROUP = "stepstream-store"
_CALL_S = 10.0


class SinkPosition:
    """Follows the position of the `store` job, without being in its group. Use it from one thread."""

    def __init__(self, kafka: KafkaSettings) -> None:
        """Connect lazily."""
        self._consumer = consumer(kafka, {"group.id": SINK_GROUP, "enable.auto.commit": False})
        self._complete_until_us = 0

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def ask(self, now_us: int) -> Position:
        """Return the position. The tables are complete until the newest call that found nothing outstanding.

        Raises:
            KafkaException: no broker answers, or a right is missing.
        """
        topic = self._consumer.list_topics(LABELED_TRAJECTORIES, timeout=_CALL_S).topics[LABELED_TRAJECTORIES]
        partitions = [TopicPartition(LABELED_TRAJECTORIES, number) for number in sorted(topic.partitions)]
        offsets, behind = [], 0
        for one in self._consumer.committed(partitions, timeout=_CALL_S):
            begin, end = self._consumer.get_watermark_offsets(
                TopicPartition(LABELED_TRAJECTORIES, one.partition), timeout=_CALL_S
            )
            reached = max(begin, one.offset)  # nothing is committed: below 0
            behind += end - reached
            offsets.append(f"{one.partition}={reached}")
        if not behind:
            self._complete_until_us = now_us
        return Position(f"{LABELED_TRAJECTORIES}:{','.join(offsets)}", self._complete_until_us)
