"""Count the records that each job has not processed yet: end offsets minus committed offsets of its consumer group."""

import logging
import threading
import time
from collections import defaultdict

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from stepstream.config import Settings
from stepstream.topics.client import client_config

_GROUPS = "stepstream-"
_CALL_S = 3.0
_FRESH_S = 3.0

_SILENT = logging.getLogger("stepstream.services.console.librdkafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False

Lag = tuple[dict[str, int], str | None]

_lock = threading.Lock()
_answers: dict[str, tuple[float, Lag]] = {}


def lag_of_jobs(settings: Settings) -> Lag:
    """Return the lag by job, and the reason if it cannot be read. Kafka is asked every 3 seconds at most; blocks."""
    with _lock:
        asked_at, answer = _answers.get(settings.kafka.bootstrap, (-_FRESH_S, ({}, None)))
        if time.monotonic() - asked_at < _FRESH_S:
            return answer
        try:
            answer = _read(settings), None
        except KafkaException as error:
            answer = {}, f"Kafka does not answer: {error.args[0]}"
        _answers[settings.kafka.bootstrap] = time.monotonic(), answer
        return answer


def _read(settings: Settings) -> dict[str, int]:
    prefix = settings.kafka.prefix + _GROUPS
    admin = AdminClient(client_config(settings.kafka), logger=_SILENT)
    listed = admin.list_consumer_groups(request_timeout=_CALL_S).result()
    if listed.errors:
        raise KafkaException(listed.errors[0])
    groups = [group.group_id for group in listed.valid]
    lag: defaultdict[str, int] = defaultdict(int)
    for group in sorted(group for group in groups if group.startswith(prefix)):
        request = [ConsumerGroupTopicPartitions(group)]
        futures = admin.list_consumer_group_offsets(request, request_timeout=_CALL_S)
        committed = [one for one in futures[group].result().topic_partitions if one.offset >= 0]
        asked = {TopicPartition(one.topic, one.partition): OffsetSpec.latest() for one in committed}  # type: ignore[no-untyped-call]
        ends = admin.list_offsets(asked, request_timeout=_CALL_S) if asked else {}
        by_partition = {(one.topic, one.partition): future.result().offset for one, future in ends.items()}
        for one in committed:
            lag[group.removeprefix(prefix)] += max(0, by_partition[one.topic, one.partition] - one.offset)
    return dict(lag)
