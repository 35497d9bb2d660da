"""Elect one controller of several: the member of a consumer group that has the only partition of `decisions` acts."""

from contextlib import AbstractContextManager

from confluent_kafka import Consumer, KafkaException, TopicPartition

from stepstream.config import KafkaSettings
from stepstream.topics.catalogue import DECISIONS
from stepstream.topics.client import consumer

GROUP = "stepstream-control"
"""Consumer group of the controllers."""
TRANSACTIONAL_ID = "control"
"""Transactional id that every controller takes over when it begins to act: it fences the one before."""
_SESSION_MS = 6000


class Leadership(AbstractContextManager["Leadership"]):
    """Membership in the group. Use it from one thread, and ask `is_leader` at least each 5 minutes."""

    def __init__(self, kafka: KafkaSettings) -> None:
        """Join the group."""
        self._assigned = False
        self._consumer = consumer(
            kafka, {"group.id": GROUP, "enable.auto.commit": False, "session.timeout.ms": _SESSION_MS}
        )
        self._subscribe()

    def is_leader(self, wait_s: float = 0.0) -> bool:
        """Return True if this process is the one that acts; wait up to `wait_s` seconds for the group."""
        try:
            self._consumer.poll(wait_s)  # the records themselves are of no use here
        except KafkaException:
            return False
        return self._assigned

    def rejoin(self) -> None:
        """Leave the group and join it again, after another controller took over: the group has the last word."""
        self._assigned = False
        self._consumer.unsubscribe()
        self._subscribe()

    def __exit__(self, *_: object) -> None:
        """Leave the group, so that another controller acts at once."""
        self._consumer.close()

    def _subscribe(self) -> None:
        self._consumer.subscribe([DECISIONS], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)

    def _assign(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._assigned = bool(partitions)

    def _revoke(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._assigned = False
