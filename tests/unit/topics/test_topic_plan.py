"""Foreign topics are refused, values that others changed stay, and an interrupted creation is resumed."""

from dataclasses import replace

import pytest
from stack_fixtures import with_settings

from stepstream.config import Settings
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.topic_plan import (
    ExistingTopic,
    ForeignTopics,
    OwnedTopic,
    PartitionsDiffer,
    TopicPlan,
    check_foreign,
    check_partitions,
    plan_topics,
)


def declared(settings: Settings, name: str = "steps") -> dict[str, str]:
    return TOPICS[name].settings(settings)


def as_declared(settings: Settings, name: str = "steps", **values: str) -> ExistingTopic:
    """Return the topic as Stepstream creates it, with some values replaced; `_` for `.`."""
    replaced = {key.replace("_", "."): value for key, value in values.items()}
    config = declared(settings, name) | replaced
    return ExistingTopic("id-1", TOPICS[name].partition_count(settings.topics), 1, config, frozenset(config))


def planned(
    settings: Settings,
    existing: ExistingTopic | None,
    owned: OwnedTopic | None,
    name: str = "steps",
    adopted: tuple[str, ...] = (),
) -> TopicPlan:
    plans = plan_topics(
        settings, {name: existing} if existing else {}, {name: owned} if owned is not None else {}, adopted
    )
    return next(plan for plan in plans if plan.name == name)


def test_a_missing_topic_is_created(base_settings: Settings) -> None:
    plan = planned(base_settings, None, None)
    assert (plan.action, plan.changes) == ("create", declared(base_settings))


def test_a_topic_as_declared_is_left(base_settings: Settings) -> None:
    owned = OwnedTopic("id-1", declared(base_settings))
    assert planned(base_settings, as_declared(base_settings), owned) == TopicPlan("steps", "leave", "")


@pytest.mark.parametrize("owned", [None, OwnedTopic("id-0")])
def test_a_foreign_topic_is_refused_also_with_the_declared_values(
    base_settings: Settings, owned: OwnedTopic | None
) -> None:
    plan = planned(base_settings, as_declared(base_settings), owned)
    assert plan.action == "refuse"
    with pytest.raises(ForeignTopics, match=r"blue\.steps was .*STEPSTREAM_KAFKA_PREFIX.*--adopt steps"):
        check_foreign([plan], "blue.")


def test_a_changed_declaration_is_set_where_nobody_else_changed_it(base_settings: Settings) -> None:
    settings = with_settings(base_settings, topics={"steps_retention_s": 60.0})
    plan = planned(settings, as_declared(base_settings), OwnedTopic("id-1", declared(base_settings)))
    assert (plan.action, plan.changes) == ("change", {"retention.ms": "60000"})
    assert plan.owned == OwnedTopic("id-1", declared(settings))


def test_what_a_user_changed_stays_and_the_plan_shows_it(base_settings: Settings) -> None:
    settings = with_settings(base_settings, topics={"steps_retention_s": 60.0})
    existing = as_declared(base_settings, retention_ms="5000")
    plan = planned(settings, existing, OwnedTopic("id-1", declared(base_settings)))
    assert (plan.action, plan.changes, plan.owned) == ("leave", {}, None)
    assert plan.reason == "keeps retention.ms=5000, which others set; declared: 60000"


def test_a_value_new_in_the_catalogue_is_set_unless_a_user_set_it_before(base_settings: Settings) -> None:
    last = {key: value for key, value in declared(base_settings).items() if key != "segment.ms"}
    existing = as_declared(base_settings, segment_ms="7")
    assert planned(base_settings, existing, OwnedTopic("id-1", last)).changes == {}
    default = replace(existing, own_values=frozenset(last))
    assert planned(base_settings, default, OwnedTopic("id-1", last)).changes == {"segment.ms": "86400000"}


def test_a_creation_that_was_interrupted_is_resumed_only_if_the_topic_is_as_declared(base_settings: Settings) -> None:
    intent = OwnedTopic("")
    plan = planned(base_settings, as_declared(base_settings), intent)
    assert (plan.action, plan.owned) == ("leave", OwnedTopic("id-1", declared(base_settings)))
    assert planned(base_settings, as_declared(base_settings, retention_ms="5"), intent).action == "refuse"


def test_taking_over_keeps_the_values_that_were_set(base_settings: Settings) -> None:
    existing = as_declared(base_settings, retention_ms="5000")
    plan = planned(base_settings, existing, None, adopted=("steps",))
    assert (plan.action, plan.changes) == ("change", {})
    assert plan.reason.startswith("is taken over; keeps retention.ms=5000")
    assert plan.owned is not None
    assert plan.owned.topic_id == "id-1"


def test_a_topic_with_other_partitions_than_its_readers_know_is_not_taken_over(base_settings: Settings) -> None:
    existing = replace(as_declared(base_settings, "policies"), partitions=3)
    plan = planned(base_settings, existing, None, "policies", ("policies",))
    assert (plan.action, plan.reason) == ("refuse", "has 3 partitions, and needs 1")


def test_fewer_replicas_than_declared_are_shown(base_settings: Settings) -> None:
    settings = with_settings(base_settings, kafka={"replication": 3})
    plan = planned(settings, as_declared(settings), OwnedTopic("id-1", declared(settings)))
    assert (plan.action, plan.reason) == ("leave", "has 1 replicas; declared: 3; reassign partitions")


@pytest.mark.parametrize(("replication", "setting", "expected"), [(1, 0, "1"), (2, 0, "1"), (3, 0, "2"), (3, 1, "1")])
def test_replicas_in_sync_are_a_setting(base_settings: Settings, replication: int, setting: int, expected: str) -> None:
    settings = with_settings(base_settings, kafka={"replication": replication, "min_insync_replicas": setting})
    assert all(topic.settings(settings)["min.insync.replicas"] == expected for topic in TOPICS.values())


def test_topics_of_different_sizes_must_be_created_anew(base_settings: Settings) -> None:
    with pytest.raises(PartitionsDiffer, match=r"feedback has 4.*create the topics anew"):
        check_partitions({"steps": 8, "feedback": 4}, base_settings)


def test_topics_with_a_fixed_number_and_foreign_topics_may_have_any(base_settings: Settings) -> None:
    check_partitions({"steps": 8, "policies": 3, "orders": 5}, base_settings)
