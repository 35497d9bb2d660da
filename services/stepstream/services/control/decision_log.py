"""Read decisions, answers and acts, and what an undo depends on, from the log."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from stepstream.config import Settings
from stepstream.services.control.decisions import Decisions, fold
from stepstream.services.control.signatures import TrustedKeys
from stepstream.topics.catalogue import APPROVALS, DECISION_ACTS, DECISIONS
from stepstream.topics.client import wait_for_kafka
from stepstream.topics.codec import Codec, RegistryUnavailable
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.table import Table

NEWEST = 5000
"""Records of each topic that `read_decisions` reads by default. A decision waits for people for hours at most."""
_DEADLINE_S = 30.0
_POLL = 1000


def read_decisions(settings: Settings, newest: int | None = NEWEST) -> Decisions:
    """Read the newest decisions, answers and acts; None: all.

    Raises:
        KafkaUnavailable: no broker answers within its deadline.
        KafkaException: a topic is missing.
        SettingsError: `control.trusted_keys` has a key twice.
    """
    keys = TrustedKeys(settings.control.trusted_keys)
    wait_for_kafka(settings.kafka)
    topics = (DECISIONS, APPROVALS, DECISION_ACTS)
    records: dict[str, list[Any]] = {topic: [] for topic in topics}
    with closing(Codec(settings)) as codec, EventConsumer(settings.kafka, codec) as events:
        events.follow(topics, _start(events, topics, newest))
        while not events.is_caught_up():
            for event in events.poll(_POLL, 0.2):
                if event.record is not None:
                    records[event.topic].append(event.record)
    return fold(records[DECISIONS], records[APPROVALS], records[DECISION_ACTS], keys)


def read_table(settings: Settings, topic: str) -> dict[str, Any]:
    """Return the newest record of each key of a compacted topic.

    Raises:
        KafkaUnavailable: no broker answers within its deadline.
        RegistryUnavailable: the topic was not read within 30 seconds.
    """
    wait_for_kafka(settings.kafka)
    with Table(settings, topic) as table:
        if not table.wait_current(_DEADLINE_S):
            raise RegistryUnavailable(f"topic {topic} was not read within {_DEADLINE_S:g} s: see `stepstream doctor`")
        return table.items()


def _start(events: EventConsumer, topics: Sequence[str], newest: int | None) -> dict[tuple[str, int], int]:
    if newest is None:
        return {}
    ranges = {at: bounds for topic in topics for at, bounds in events.offset_ranges(topic).items()}
    return {at: max(begin, end - newest) for at, (begin, end) in ranges.items()}
