"""`apply` retries while the cluster is busy, and passes on rejections."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from stack_fixtures import with_settings

from stepstream.config import Settings
from stepstream.topics import admin
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.topic_plan import ExistingTopic, ForeignTopics, OwnedTopic, TopicPlan


@pytest.fixture
def cluster(base_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of a cluster whose registry has everything."""
    monkeypatch.setattr(admin, "wait_for_kafka", lambda _kafka: None)
    monkeypatch.setattr(admin, "admin_client", lambda _kafka: None)
    monkeypatch.setattr(admin, "_wait_for_registry", lambda _registry: None)
    monkeypatch.setattr(admin, "_plan_subjects", lambda *_: [])
    monkeypatch.setattr(admin, "_RETRY_S", 0.0)
    return base_settings


def answering(*codes: int) -> list[BaseException]:
    return [KafkaException(KafkaError(code)) for code in codes]


def topics(monkeypatch: pytest.MonkeyPatch, faults: list[BaseException]) -> None:
    def apply_topics(*_: object) -> list[admin.Change]:
        if faults:
            raise faults.pop(0)
        return [admin.Change("topic", "steps", "created")]

    monkeypatch.setattr(admin, "_apply_topics", apply_topics)


def test_a_busy_cluster_is_retried(cluster: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    topics(monkeypatch, answering(KafkaError._TIMED_OUT, KafkaError.NOT_CONTROLLER))
    assert [change.name for change in admin.apply(cluster)] == ["steps"]


def test_a_rejection_raises_at_once(cluster: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = answering(KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._TIMED_OUT)
    topics(monkeypatch, faults)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        admin.apply(cluster)
    assert len(faults) == 1


def test_a_busy_cluster_raises_after_the_deadline(cluster: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    topics(monkeypatch, answering(*[KafkaError._TIMED_OUT] * 3))
    with pytest.raises(KafkaException, match="_TIMED_OUT"):
        admin.apply(with_settings(cluster, kafka={"deadline_s": 0.0}))


class RacedCluster:
    """A cluster where another program creates the topic `steps` between plan and creation."""

    def __init__(self, settings: Settings, monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
        self.settings, self.owned = settings, dict[str, OwnedTopic]()
        self.altered: list[str] = []
        topics = {name: _topic(settings, name) for name in TOPICS}
        topics["steps"] = _topic(settings, "steps", **values)
        monkeypatch.setattr(admin, "existing_topics", lambda _admin: {})
        monkeypatch.setattr(admin, "describe_topics", lambda _admin, names: {name: topics[name] for name in names})
        monkeypatch.setattr(admin, "create_record", lambda *_: None)
        monkeypatch.setattr(admin, "write_owned", lambda _kafka, entries: self.owned.update(entries))
        monkeypatch.setattr(admin, "_create", lambda _admin, names, _settings: [n for n in names if n != "steps"])
        monkeypatch.setattr(admin, "_alter", self._alter)

    def _alter(self, _admin: Any, topic: TopicPlan, prefix: str) -> admin.Change:
        self.altered.append(topic.name)
        return admin.Change("topic", prefix + topic.name, "set")

    def apply(self, *adopt: str) -> list[admin.Change]:
        return admin._apply_topics(None, None, self.settings, adopt)  # type: ignore[arg-type]


def _topic(settings: Settings, name: str, **values: str) -> ExistingTopic:
    config = TOPICS[name].settings(settings) | {key.replace("_", "."): value for key, value in values.items()}
    return ExistingTopic(f"id of {name}", TOPICS[name].partition_count(settings.topics), 1, config, frozenset(config))


@pytest.fixture
def external(base_settings: Settings) -> Settings:
    return with_settings(base_settings, stack={"external": ["broker"]})


def test_a_topic_that_others_create_meanwhile_is_foreign(external: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    raced = RacedCluster(external, monkeypatch, retention_ms="1")
    with pytest.raises(ForeignTopics, match="steps was not created by Stepstream; the missing topics were created"):
        raced.apply()
    assert raced.owned["steps"].topic_id == ""
    assert [change.name for change in raced.apply("steps") if change.action == "set"] == ["steps"]
    assert raced.owned["steps"].topic_id == "id of steps"


def test_a_topic_that_another_apply_creates_meanwhile_is_own(
    external: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    raced = RacedCluster(external, monkeypatch)
    assert "steps" not in [change.name for change in raced.apply()]
    assert {name: topic.topic_id for name, topic in raced.owned.items()} == {name: f"id of {name}" for name in TOPICS}
    assert raced.altered == []
