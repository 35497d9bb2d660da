"""Plan the changes of topics: compare the catalogue with a cluster and with what Stepstream set last. Pure.

A topic belongs to Stepstream if its id is in the record of topics that Stepstream created or took over. Any other is
foreign, and nothing is done to it. A value that others changed since Stepstream set it stays.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from stepstream.config import Settings
from stepstream.core.process import Fatal
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.topic import Topic

OWNED_TOPICS = "stepstream-owned-topics"
"""Topic of the record, see `owned_topics`; no part of the log."""


class ForeignTopics(Fatal):
    """Topics of the catalogue's names exist that Stepstream did not create. The message names them and the remedy."""


class PartitionsDiffer(Fatal):
    """Existing topics have another number of partitions than `topics.partitions`."""

    def __init__(self, fact: str, remedy: str) -> None:
        super().__init__(f"{fact}: {remedy}")
        self.fact, self.remedy = fact, remedy


@dataclass(frozen=True)
class ExistingTopic:
    """A topic as the cluster has it."""

    topic_id: str
    partitions: int
    replication: int
    """Smallest number of replicas of a partition."""
    values: Mapping[str, str]
    """Effective configuration."""
    own_values: frozenset[str]
    """Names of the values that are set for this topic; the others are the cluster's defaults."""


@dataclass(frozen=True)
class OwnedTopic:
    """Entry of one topic in the record."""

    topic_id: str
    """Empty: it was about to be created."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Values that Stepstream set last."""


@dataclass(frozen=True)
class TopicPlan:
    """Planned action of `topics apply` on one topic."""

    name: str
    """Name in the catalogue."""
    action: Literal["create", "change", "leave", "refuse"]
    reason: str
    """Fact that explains the action, and values that stay although the settings differ; empty: nothing differs."""
    changes: Mapping[str, str] = field(default_factory=dict)
    """Values to set; of a new topic, all."""
    owned: OwnedTopic | None = None
    """Record to write afterwards; None: it is there already, or the topic is foreign or new."""


def plan_topics(
    settings: Settings,
    existing: Mapping[str, ExistingTopic],
    owned: Mapping[str, OwnedTopic],
    adopted: Collection[str] = (),
) -> list[TopicPlan]:
    """Return the plan of each topic of the catalogue.

    Args:
        settings: declare the topics, together with the catalogue.
        existing: topics of the cluster, by the catalogue's name.
        owned: record of the topics that belong to Stepstream.
        adopted: foreign topics to take over.
    """
    return [
        _plan(topic, settings, existing.get(topic.name), owned.get(topic.name), topic.name in adopted)
        for topic in TOPICS.values()
    ]


def _plan(
    topic: Topic, settings: Settings, existing: ExistingTopic | None, owned: OwnedTopic | None, is_adopted: bool
) -> TopicPlan:
    declared = topic.settings(settings)
    partitions = topic.partition_count(settings.topics)
    if existing is None:
        reason = f"{partitions} partitions, {settings.kafka.replication} replicas"
        return TopicPlan(topic.name, "create", reason, declared)
    is_own = owned is not None and (
        existing.topic_id == owned.topic_id
        # A process ended between the record and the creation, or between both and the topic's id.
        or (not owned.topic_id and _equals(existing, declared, partitions))
    )
    if not is_own and not is_adopted:
        reason = "was created anew by others" if owned and owned.topic_id else "was not created by Stepstream"
        return TopicPlan(topic.name, "refuse", reason)
    if not is_own and topic.partitions not in (None, existing.partitions):
        return TopicPlan(topic.name, "refuse", f"has {existing.partitions} partitions, and needs {topic.partitions}")
    known = owned if owned is not None and is_own else OwnedTopic(existing.topic_id)
    changes, kept = _differences(declared, existing, known.config)
    notes = [f"keeps {key}={value}, which others set; declared: {declared[key]}" for key, value in kept.items()]
    if existing.replication < settings.kafka.replication:
        notes.append(
            f"has {existing.replication} replicas; declared: {settings.kafka.replication}; reassign partitions"
        )
    if not is_own:
        notes.insert(0, "is taken over")
    set_last = {key: value for key, value in declared.items() if key not in kept}
    record = OwnedTopic(existing.topic_id, {**known.config, **set_last})
    return TopicPlan(
        topic.name,
        "change" if changes or not is_own else "leave",
        "; ".join(notes),
        changes,
        None if record == owned else record,
    )


def _equals(existing: ExistingTopic, declared: Mapping[str, str], partitions: int) -> bool:
    return existing.partitions == partitions and all(existing.values.get(k) == v for k, v in declared.items())


def _differences(
    declared: Mapping[str, str], existing: ExistingTopic, set_last: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the values to set, and the present values that others set."""
    changes, kept = {}, {}
    for key, value in declared.items():
        present = existing.values.get(key, "")
        if present == value:
            continue
        is_own = present == set_last[key] if key in set_last else key not in existing.own_values
        if is_own:
            changes[key] = value
        else:
            kept[key] = present
    return changes, kept


def check_foreign(plans: Sequence[TopicPlan], prefix: str, done: str = "nothing was changed") -> None:
    """Check that no topic is refused. `done` tells in the message what was done before.

    Raises:
        ForeignTopics: some are.
    """
    refused = [plan for plan in plans if plan.action == "refuse"]
    if refused:
        facts = "; ".join(f"{prefix}{plan.name} {plan.reason}" for plan in refused)
        names = " ".join(f"--adopt {plan.name}" for plan in refused)
        raise ForeignTopics(
            f"foreign topics: {facts}; {done}: set STEPSTREAM_KAFKA_PREFIX to names of your own, or take "
            f"them over with `stepstream topics apply {names}` if they are of an earlier Stepstream, or of Strimzi"
        )


def check_partitions(existing: Mapping[str, int], settings: Settings) -> None:
    """Check that the existing topics whose keys have state have the configured number of partitions.

    With more partitions, half of the keys or more would move away from their state, and a trajectory would count twice.
    A job also needs the same number in all its inputs.

    Args:
        existing: number of partitions, by topic of the cluster.
        settings: `topics.partitions`.

    Raises:
        PartitionsDiffer: a topic has another number.
    """
    configured = settings.topics.partitions
    counts = {name: existing[name] for name, topic in TOPICS.items() if topic.partitions is None and name in existing}
    wrong = {name: count for name, count in counts.items() if count != configured}
    if not wrong:
        return
    fact = (
        f"`topics.partitions` is {configured}, but "
        + ", ".join(f"{name} has {count}" for name, count in sorted(wrong.items()))
        + ", and other partitions would part keys from their state"
    )
    if len(set(counts.values())) == 1:
        [count] = set(counts.values())
        remedy = f"set STEPSTREAM_TOPICS_PARTITIONS={count}, or copy the log with `stepstream topics copy`"
        raise PartitionsDiffer(fact, f"{remedy}, see docs/operations.md")
    raise PartitionsDiffer(fact, "create the topics anew with one number of partitions, see docs/operations.md")
