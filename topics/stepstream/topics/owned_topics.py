"""Keep the record of topics that belong to Stepstream: a compacted topic of the cluster, keyed by the catalogue's name.

Kafka stores no labels with a topic, and a name proves nothing. The record holds each topic's id, which a topic that is
created anew does not keep, and the values that Stepstream set last.
"""

import time
from collections.abc import Mapping

import orjson
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from stepstream.config import KafkaSettings
from stepstream.core.process import Fatal
from stepstream.topics.client import consumer, producer
from stepstream.topics.topic_plan import OWNED_TOPICS, OwnedTopic

_TIMEOUT_S = 30.0


def create_record(admin: AdminClient, kafka: KafkaSettings) -> None:
    """Create the topic of the record if it is missing.

    Raises:
        KafkaException: the cluster rejected it.
    """
    config = {"cleanup.policy": "compact", "min.insync.replicas": str(kafka.in_sync_replicas)}
    try:
        admin.create_topics([NewTopic(OWNED_TOPICS, 1, kafka.replication, config=config)])[OWNED_TOPICS].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def read_owned(kafka: KafkaSettings, timeout_s: float = _TIMEOUT_S) -> dict[str, OwnedTopic]:
    """Read the record to its end; the topic exists.

    Raises:
        KafkaException: it cannot be read within the timeout.
        Fatal: the topic holds other records.
    """
    reader = consumer(kafka, {"group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True})
    reader.assign([TopicPartition(OWNED_TOPICS, 0, 0)])
    owned: dict[str, OwnedTopic] = {}
    deadline = time.monotonic() + timeout_s
    try:
        while time.monotonic() < deadline:
            for message in reader.consume(500, 0.2):
                fault = message.error()
                if fault is None:
                    name, topic = _parse(message.key(), message.value())
                    owned[name] = topic
                elif fault.code() == KafkaError._PARTITION_EOF:
                    return owned
                elif not fault.retriable() and fault.code() != KafkaError._ALL_BROKERS_DOWN:
                    raise KafkaException(fault)
    finally:
        reader.close()
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{OWNED_TOPICS} cannot be read to its end"))


def write_owned(kafka: KafkaSettings, topics: Mapping[str, OwnedTopic]) -> None:
    """Write entries; block until they are durable.

    Raises:
        KafkaException: Kafka rejected one, or did not confirm it within 30 seconds.
    """
    if not topics:
        return
    writer = producer(kafka, {"enable.idempotence": True, "message.timeout.ms": round(_TIMEOUT_S * 1000)})
    faults: list[KafkaError] = []
    for name, topic in topics.items():
        value = orjson.dumps({"topic_id": topic.topic_id, "config": dict(topic.config)})
        writer.produce(
            OWNED_TOPICS,
            value=value,
            key=name.encode(),
            on_delivery=lambda error, _: faults.append(error) if error is not None else None,
        )
    writer.flush()
    if faults:
        raise KafkaException(faults[0])


def _parse(key: bytes | None, value: bytes | None) -> tuple[str, OwnedTopic]:
    try:
        entry = orjson.loads(value or b"")
        return (key or b"").decode(), OwnedTopic(entry["topic_id"], entry["config"])
    except (ValueError, KeyError, TypeError):
        raise Fatal(
            f"topic {OWNED_TOPICS} holds records that Stepstream did not write: set STEPSTREAM_KAFKA_PREFIX to names "
            "of your own"
        ) from None
