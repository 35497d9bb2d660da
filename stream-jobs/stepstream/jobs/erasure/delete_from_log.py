"""Takes from the log what is a person's: destroys keys, and deletes stretches of the intake."""

import time
from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, TopicPartition

from stepstream.config import Settings
from stepstream.crypto.key_ring import ERASURES, KEYS
from stepstream.jobs.runtime.processor import group
from stepstream.topics.client import admin_client, client_config
from stepstream.topics.codec import Codec
from stepstream.topics.events import Erasure, new_erasure
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer

_CALL_S = 20.0
_LOOK_S = 0.2

Places = Mapping[tuple[str, int], int]
"""An offset by topic and partition."""


class NotInTime(Exception):
    """A job has not come as far as it must; the message says which, and what to do."""


def decide(settings: Settings, tenant: str, subject: str, requested_by: str) -> Erasure:
    """Writes the decision, durably: all that happened with the person until now is erased."""
    erasure = new_erasure(
        event_id=new_event_id(), occurred_at_us=now_us(), tenant=tenant, subject=subject, requested_by=requested_by
    )
    codec = Codec(settings.schema_registry)
    try:
        producer = EventProducer(settings.kafka, codec, "erase", linger_ms=0)
        producer.send(ERASURES, subject, erasure)
        producer.flush(_CALL_S)
    finally:
        codec.close()
    return erasure


def forget(settings: Settings, topic: str, keys: Iterable[str]) -> None:
    """Deletes keys of a compacted topic, durably."""
    codec = Codec(settings.schema_registry)
    try:
        producer = EventProducer(settings.kafka, codec, "erase", linger_ms=0)
        for key in keys:
            producer.delete(topic, key)
        producer.flush(_CALL_S)
    finally:
        codec.close()


def destroy(settings: Settings, key_ids: Iterable[str]) -> None:
    """Destroys keys: what is sealed under them can never be read again."""
    forget(settings, KEYS, key_ids)


def ends(settings: Settings, topics: Iterable[str]) -> dict[tuple[str, int], int]:
    """Offsets after the newest records, as of now."""
    consumer = _consumer(settings, "unused")
    try:
        return {
            (topic, partition): consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_CALL_S)[1]
            for topic in topics
            for partition in consumer.list_topics(topic, timeout=_CALL_S).topics[topic].partitions
        }
    finally:
        consumer.close()


def read_by(settings: Settings, group_id: str, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Offsets before which a consumer group has committed everything; 0 where it has committed nothing."""
    asked = [TopicPartition(*place) for place in places]
    if not asked:
        return {}
    consumer = _consumer(settings, group_id)
    try:
        committed = consumer.committed(asked, timeout=_CALL_S)
        return {(entry.topic, entry.partition): max(0, entry.offset) for entry in committed}
    finally:
        consumer.close()


def wait_until_read(settings: Settings, job: str, until: Places, timeout_s: float) -> None:
    """Blocks until a job has committed all offsets below `until`.

    Raises:
        NotInTime: it has not within `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    wanted = {place: offset for place, offset in until.items() if offset > 0}
    consumer = _consumer(settings, group(job))
    try:
        while wanted:
            asked = [TopicPartition(*place) for place in wanted]
            for entry in consumer.committed(asked, timeout=_CALL_S):
                if entry.offset >= wanted[entry.topic, entry.partition]:
                    del wanted[entry.topic, entry.partition]
            if wanted and time.monotonic() > deadline:
                (topic, partition), offset = min(wanted.items())
                raise NotInTime(
                    f"job {job} has not read {topic}[{partition}] up to offset {offset} within {timeout_s:g} s: start "
                    "it and run this again, which goes on from here"
                )
            if wanted:
                time.sleep(_LOOK_S)
    finally:
        consumer.close()


def delete_up_to(settings: Settings, newest: Places) -> int:
    """Deletes the records of partitions up to and with the given offsets; returns in how many partitions."""
    if not newest:
        return 0
    admin = admin_client(settings.kafka)
    below = [TopicPartition(topic, partition, offset + 1) for (topic, partition), offset in newest.items()]
    for future in admin.delete_records(below, request_timeout=_CALL_S).values():
        future.result()
    return len(below)


def _consumer(settings: Settings, name: str) -> Consumer:
    return Consumer(client_config(settings.kafka) | {"group.id": name, "enable.auto.commit": False})
