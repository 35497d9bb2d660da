"""Check that the offsets of the jobs' consumer groups can be read: an unfinished transaction blocks each start."""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stepstream.cli.doctor_services import Finding
from stepstream.config import Settings, SettingsError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_GROUPS = "stepstream-"
_CALL_S = 3.0
_WATCH_S = 3.0
"""Time in which each offset must be stable once. A worker's transaction usually takes milliseconds."""
_POLL_S = 0.05


def pending_offsets(settings: Settings) -> Iterator[Finding]:
    """Report offsets that stay pending; nothing if there are none, or if no broker answers."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from stepstream.embedded.ready import SILENT
    from stepstream.topics.client import client_config, reporting_invalid_settings

    try:
        with reporting_invalid_settings():
            admin = AdminClient(client_config(settings.kafka), logger=SILENT)  # whole names, with the prefix
        topics = admin.list_topics(timeout=_CALL_S).topics
        prefix = settings.kafka.prefix
        wanted = [(name, number) for name in topics if name.startswith(prefix) for number in topics[name].partitions]
        groups = [group.group_id for group in admin.list_consumer_groups(request_timeout=_CALL_S).result().valid]
        for group in sorted(group for group in groups if group.startswith(prefix + _GROUPS)):
            if pending := _pending(admin, group, wanted):
                yield _finding(group, pending, settings.jobs.session_timeout_s)
    except (KafkaException, SettingsError):
        return  # the check of the broker reports it


def _pending(admin: "AdminClient", group: str, partitions: Sequence[tuple[str, int]]) -> set[tuple[str, int]]:
    """Return the partitions whose offsets are pending in each read."""
    until = time.monotonic() + _WATCH_S
    pending = _unstable(admin, group, partitions)
    while pending and time.monotonic() < until:
        time.sleep(_POLL_S)
        pending &= _unstable(admin, group, sorted(pending))
    return pending


def _unstable(admin: "AdminClient", group: str, partitions: Sequence[tuple[str, int]]) -> set[tuple[str, int]]:
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition

    request = ConsumerGroupTopicPartitions(group, [TopicPartition(*one) for one in partitions])
    futures = admin.list_consumer_group_offsets([request], require_stable=True, request_timeout=_CALL_S)
    offsets = futures[group].result().topic_partitions
    return {
        (one.topic, one.partition)
        for one in offsets
        if one.error is not None and one.error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT
    }


def _finding(group: str, pending: set[tuple[str, int]], session_timeout_s: float) -> Finding:
    names = ", ".join(f"{topic}[{number}]" for topic, number in sorted(pending))
    return Finding(
        "offsets",
        "warning",
        f"offsets of group {group} have been pending for {_WATCH_S:g} s: {names}: a worker that would own them waits",
        f"if it lasts longer than {session_timeout_s:g} s: start the worker that stopped last on its machine and state "
        "folder, since its start ends its transactions; if it never returns, see docs/operations.md, Pending offsets",
    )
