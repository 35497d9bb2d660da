"""Read the current records of a compacted topic, and write one: policies, consents, reward specifications, keys."""

from contextlib import closing
from typing import Any

from stepstream.config import Settings
from stepstream.topics.client import wait_for_kafka
from stepstream.topics.codec import Codec, RegistryUnavailable
from stepstream.topics.producer import EventProducer
from stepstream.topics.table import RejectionOf, Table

_DEADLINE_S = 30.0


def read(settings: Settings, topic: str, rejection_of: RejectionOf | None = None) -> dict[str, Any]:
    """The newest record of each key that can be used; `rejection_of` as in `Table`.

    Raises:
        KafkaUnavailable: no broker answers within its deadline.
        RegistryUnavailable: the registry does not give it within 30 seconds.
    """
    wait_for_kafka(settings.kafka)
    with Table(settings, topic, rejection_of=rejection_of) as table:
        if not table.wait_current(_DEADLINE_S):
            raise RegistryUnavailable(f"topic {topic} was not read within {_DEADLINE_S:g} s: see `stepstream doctor`")
        return table.items()


def write(settings: Settings, topic: str, key: str, record: Any) -> None:
    """Publish one record and block until Kafka has acknowledged it.

    Raises:
        DeliveryFailed: Kafka did not acknowledge it within 30 seconds.
    """
    with closing(Codec(settings)) as codec:
        producer = EventProducer(settings.kafka, codec, "stepstream", linger_ms=0)
        producer.send(topic, key, record)
        producer.flush(_DEADLINE_S)


def delete(settings: Settings, topic: str, key: str) -> None:
    """Delete a key and block until Kafka has acknowledged it.

    Raises:
        DeliveryFailed: Kafka did not acknowledge it within 30 seconds.
    """
    with closing(Codec(settings)) as codec:
        producer = EventProducer(settings.kafka, codec, "stepstream", linger_ms=0)
        producer.delete(topic, key)
        producer.flush(_DEADLINE_S)
