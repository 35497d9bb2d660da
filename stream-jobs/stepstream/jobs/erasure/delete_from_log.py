"""Erase a person from the log: write the decision, destroy keys, and delete the oldest records of partitions."""

import time
from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, TopicPartition

from stepstream.config import Settings
from stepstream.crypto.master_key import destroyed
from stepstream.jobs.runtime.processor import consumer_group
from stepstream.topics import client
from stepstream.topics.catalogue import ERASURES, SUBJECT_KEYS
from stepstream.topics.codec import Codec
from stepstream.topics.events import Erasure, SubjectKey, new_erasure
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer

_CALL_S = 20.0
_POLL_S = 0.2

Offsets = Mapping[tuple[str, int], int]
"""Offset by (topic, partition)."""


class JobBehind(Exception):
    """A job has not read far enough; the message names the job, the offset and the remedy."""


def write_decision(
    settings: Settings, tenant: str, subject: str, requested_by: str, event_id: str | None = None
) -> Erasure:
    """Write the decision durably: all events of the person until now are erased. Default `event_id`: a new one."""
    erasure = new_erasure(
        event_id=event_id or new_event_id(),
        occurred_at_us=now_us(),
        tenant=tenant,
        subject=subject,
        requested_by=requested_by,
    )
    codec = Codec(settings)
    try:
        producer = EventProducer(settings.kafka, codec, "erase", linger_ms=0)
        producer.send(ERASURES, subject, erasure)
        producer.flush(_CALL_S)
    finally:
        codec.close()
    return erasure


def delete_keys(settings: Settings, topic: str, keys: Iterable[str]) -> None:
    """Delete keys of a compacted topic durably."""
    codec = Codec(settings)
    try:
        producer = EventProducer(settings.kafka, codec, "erase", linger_ms=0)
        for key in keys:
            producer.delete(topic, key)
        producer.flush(_CALL_S)
    finally:
        codec.close()


def destroy_keys(settings: Settings, keys: Iterable[SubjectKey]) -> None:
    """Destroy encryption keys durably: with the erasure of their subjects, what they sealed is unreadable for ever."""
    codec = Codec(settings)
    try:
        producer = EventProducer(settings.kafka, codec, "erase", linger_ms=0)
        for key in keys:
            producer.send(SUBJECT_KEYS, key["key_id"], destroyed(key))
        producer.flush(_CALL_S)
    finally:
        codec.close()


def first_offsets(settings: Settings, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return the first offset of each (topic, partition), as of now."""
    consumer = _consumer(settings, "unused")
    try:
        return {
            place: consumer.get_watermark_offsets(TopicPartition(*place), timeout=_CALL_S)[0] for place in partitions
        }
    finally:
        consumer.close()


def end_offsets(settings: Settings, topics: Iterable[str]) -> dict[tuple[str, int], int]:
    """Return the offset after the newest record of each partition, as of now."""
    consumer = _consumer(settings, "unused")
    try:
        return {
            (topic, partition): consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_CALL_S)[1]
            for topic in topics
            for partition in consumer.list_topics(topic, timeout=_CALL_S).topics[topic].partitions
        }
    finally:
        consumer.close()


def committed_offsets(
    settings: Settings, group_id: str, partitions: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """Return a consumer group's committed offset of each partition; 0 if it has committed none."""
    requested = [TopicPartition(*partition) for partition in partitions]
    if not requested:
        return {}
    consumer = _consumer(settings, group_id)
    try:
        committed = consumer.committed(requested, timeout=_CALL_S)
        return {(entry.topic, entry.partition): max(0, entry.offset) for entry in committed}
    finally:
        consumer.close()


def wait_until_read(settings: Settings, job: str, until: Offsets, timeout_s: float) -> None:
    """Block until a job has committed all offsets below `until`.

    Raises:
        JobBehind: the job has not done so within `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    missing = {partition: offset for partition, offset in until.items() if offset > 0}
    consumer = _consumer(settings, consumer_group(job))
    try:
        while missing:
            requested = [TopicPartition(*partition) for partition in missing]
            for entry in consumer.committed(requested, timeout=_CALL_S):
                if entry.offset >= missing[entry.topic, entry.partition]:
                    del missing[entry.topic, entry.partition]
            if missing and time.monotonic() > deadline:
                (topic, partition), offset = min(missing.items())
                raise JobBehind(
                    f"job {job} has not read {topic}[{partition}] up to offset {offset} within {timeout_s:g} s: start "
                    "it and run this again to continue"
                )
            if missing:
                time.sleep(_POLL_S)
    finally:
        consumer.close()


def delete_up_to(settings: Settings, newest: Offsets) -> int:
    """Delete the records up to and including the given offsets; return the number of partitions."""
    if not newest:
        return 0
    admin = client.admin_client(settings.kafka)
    below = [TopicPartition(topic, partition, offset + 1) for (topic, partition), offset in newest.items()]
    for future in admin.delete_records(below, request_timeout=_CALL_S).values():
        future.result()
    return len(below)


def _consumer(settings: Settings, name: str) -> Consumer:
    return client.consumer(settings.kafka, {"group.id": name, "enable.auto.commit": False})
