"""`apply` retries while the cluster is busy, and passes on rejections."""

import pytest
from confluent_kafka import KafkaError, KafkaException
from stack_fixtures import with_settings

from stepstream.config import Settings
from stepstream.topics import admin


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
