"""A consumer retries while a partition has no leader."""

from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from stepstream.config import KafkaSettings
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer


class _Electing:
    """A broker that knows the leader of a partition at the second call only."""

    def __init__(self, fault: int) -> None:
        self.faults = [KafkaException(KafkaError(fault))]

    def get_watermark_offsets(self, *_: Any, timeout: float) -> tuple[int, int]:
        if self.faults:
            raise self.faults.pop()
        return 3, 7

    def list_topics(self, *_: Any, timeout: float) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("fault", [KafkaError.LEADER_NOT_AVAILABLE, KafkaError._UNKNOWN_PARTITION])
def test_a_partition_without_a_leader_is_retried(fault: int) -> None:
    with EventConsumer(KafkaSettings(), cast(Codec, None)) as consumer:
        consumer._consumer.close()
        consumer._consumer = cast(Any, _Electing(fault))
        assert consumer._offset_range("steps", 0) == (3, 7)
