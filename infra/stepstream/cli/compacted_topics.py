"""The small compacted topics that people write: reading one as it is now, and writing one record."""

from contextlib import closing
from typing import Any

from stepstream.config import Settings
from stepstream.topics.client import wait_for_kafka
from stepstream.topics.codec import Codec, RegistryUnavailable
from stepstream.topics.producer import EventProducer
from stepstream.topics.table import Refused, Table

_DEADLINE_S = 30.0


def read(settings: Settings, topic: str, refused: Refused | None = None) -> dict[str, Any]:
    """The newest record of each key that can be used; `refused` as in `Table`.

    Raises:
        KafkaUnavailable: no broker answers within its deadline.
        RegistryUnavailable: the registry does not give it within 30 seconds.
    """
    wait_for_kafka(settings.kafka)
    with Table(settings, topic, refused=refused) as table:
        if not table.wait_current(_DEADLINE_S):
            raise RegistryUnavailable(f"topic {topic} was not read within {_DEADLINE_S:g} s: see `stepstream doctor`")
        return table.items()


def write(settings: Settings, topic: str, key: str, record: Any) -> None:
    """Publishes one record; durable when it returns.

    Raises:
        DeliveryFailed: Kafka did not acknowledge it within 30 seconds.
    """
    with closing(Codec(settings.schema_registry)) as codec:
        producer = EventProducer(settings.kafka, codec, "stepstream", linger_ms=0)
        producer.send(topic, key, record)
        producer.flush(_DEADLINE_S)
