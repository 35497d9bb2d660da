"""A consumer of events bears what mends itself."""

from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from stepstream.config import KafkaSettings
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer


class _Electing:
    """A broker that knows where a partition is led only when it is asked again."""

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
def test_a_partition_without_a_leader_for_a_moment_is_asked_again(fault: int) -> None:
    with EventConsumer(KafkaSettings(), cast(Codec, None)) as consumer:
        consumer._consumer.close()
        consumer._consumer = cast(Any, _Electing(fault))
        assert consumer._bounds("steps", 0) == (3, 7)
