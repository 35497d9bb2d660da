"""`topics plan` and `topics apply` on a cluster that others use: their topics and values stay as they are."""

import os
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from command_line import stepstream
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from stack_fixtures import with_settings
from waiting import TIMEOUT_S, wait_until

from stepstream.cli import doctor_services
from stepstream.cli.topics import topics
from stepstream.config import Settings, environment_of
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.topics import admin
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.client import client_config
from stepstream.topics.registry_client import RegistryClient
from stepstream.topics.topic_plan import OWNED_TOPICS, ForeignTopics

FOREIGN = {"feedback": 5, "policies": 1}


@pytest.fixture(scope="module")
def settings(base_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A broker and a registry without the catalogue's topics."""
    wanted = with_settings(isolated(base_settings, tmp_path_factory.mktemp("plan")), topics={"partitions": 2})
    with Stack(wanted, ["broker", "registry"], deferred=["topics"]) as stack:
        yield stack.settings


@pytest.fixture(scope="module")
def cluster(settings: Settings) -> AdminClient:
    return AdminClient(client_config(settings.kafka))


def create(cluster: AdminClient, partitions: dict[str, int]) -> None:
    for future in cluster.create_topics([NewTopic(name, count, 1) for name, count in partitions.items()]).values():
        future.result(TIMEOUT_S)

    def are_known() -> bool:
        try:
            return bool(admin.describe_topics(cluster, list(partitions)))
        except KafkaException:
            return False

    wait_until(are_known)


def delete(cluster: AdminClient, topic: str) -> None:
    cluster.delete_topics([topic])[topic].result(TIMEOUT_S)
    wait_until(lambda: topic not in cluster.list_topics(timeout=TIMEOUT_S).topics)


def state(cluster: AdminClient, names: list[str]) -> dict[str, Any]:
    """Return partitions and own values of topics."""
    described = admin.describe_topics(cluster, names)
    return {name: (one.partitions, {k: one.values[k] for k in one.own_values}) for name, one in described.items()}


def set_value(cluster: AdminClient, topic: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in cluster.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_S)


def plan(settings: Settings, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run `topics plan --json`; return its status and its rows by name."""
    runner = CliRunner(env={**os.environ, **environment_of(settings)})
    done = runner.invoke(topics, ["plan", "--json", *arguments], standalone_mode=False)
    assert done.exception is None, done.exception
    return done.return_value, {row["name"]: row for row in orjson.loads(done.stdout)}


def test_foreign_topics_are_refused_and_nothing_is_changed(settings: Settings, cluster: AdminClient) -> None:
    create(cluster, FOREIGN)
    before = state(cluster, list(FOREIGN))
    with pytest.raises(ForeignTopics, match=r"feedback was not created by Stepstream; policies was not"):
        admin.apply(settings)
    status, rows = plan(settings)
    assert status == 1
    assert {name for name, row in rows.items() if row["action"] == "refuse"} == set(FOREIGN)
    assert rows["steps"]["action"] == rows["steps-value"]["action"] == "create"
    assert rows["steps"]["values"]["min.insync.replicas"] == "1"
    assert state(cluster, list(FOREIGN)) == before
    assert set(cluster.list_topics(timeout=TIMEOUT_S).topics) & set(TOPICS) == set(FOREIGN)
    assert RegistryClient(settings.schema_registry).subjects() == []


def test_own_topics_are_changed_where_no_user_changed_them(settings: Settings, cluster: AdminClient) -> None:
    blue = with_settings(settings, kafka={"prefix": "blue."}, topics={"partitions": 1})
    assert {change.action for change in admin.apply(blue) if change.kind == "topic"} == {"created"}
    assert admin.apply(blue) == []
    set_value(cluster, "blue.steps", "retention.ms", "5000")
    set_value(cluster, "blue.feedback", "compression.type", "zstd")
    changed = with_settings(blue, topics={"steps_retention_s": 60.0})
    status, rows = plan(changed)
    assert status == 0
    assert rows["blue.feedback"]["values"] == {"retention.ms": "60000"}
    assert rows["blue.steps"]["reason"] == "keeps retention.ms=5000, which others set; declared: 60000"
    assert [(c.name, c.action) for c in admin.apply(changed)] == [("blue.feedback", "set retention.ms=60000")]
    assert admin.apply(changed) == []
    described = admin.describe_topics(cluster, ["blue.steps", "blue.feedback"])
    assert described["blue.steps"].values["retention.ms"] == "5000"
    assert described["blue.feedback"].values["compression.type"] == "zstd"
    finding = doctor_services.broker(changed)
    assert finding.state == "warning"
    assert "blue.steps keeps retention.ms=5000" in finding.detail


def test_a_topic_that_others_created_anew_is_foreign(settings: Settings, cluster: AdminClient) -> None:
    green = with_settings(settings, kafka={"prefix": "green."}, topics={"partitions": 1})
    admin.apply(green)
    delete(cluster, "green.alarms")
    create(cluster, {"green.alarms": 1})
    with pytest.raises(ForeignTopics, match=r"green\.alarms was created anew by others"):
        admin.apply(green)
    finding = doctor_services.broker(green)
    assert finding.state == "fault"
    assert "green.alarms was created anew by others" in finding.detail


def test_foreign_topics_are_taken_over_by_name(settings: Settings, cluster: AdminClient) -> None:
    same = with_settings(settings, topics={"partitions": FOREIGN["feedback"]})
    cluster.create_partitions([NewPartitions("policies", 3)])["policies"].result(TIMEOUT_S)
    wait_until(lambda: admin.describe_topics(cluster, ["policies"])["policies"].partitions == 3)
    with pytest.raises(ForeignTopics, match="policies has 3 partitions, and needs 1"):
        admin.apply(same, ["feedback", "policies"])
    delete(cluster, "policies")
    actions = {change.name: change.action for change in admin.apply(same, ["feedback"]) if change.kind == "topic"}
    assert actions["feedback"].startswith("set ")
    assert actions["policies"] == "created"
    assert admin.apply(same) == []


def test_topics_of_a_release_without_the_record_are_taken_over_all_at_once(
    settings: Settings, cluster: AdminClient
) -> None:
    """They may be fewer than this release has, and users may have changed values."""
    prefix = "earlier."
    old = with_settings(settings, kafka={"prefix": prefix}, topics={"partitions": 1})
    admin.apply(old)
    for name in ("rollouts", "alarms"):  # topics that the earlier release did not have
        delete(cluster, prefix + name)
    delete(cluster, prefix + OWNED_TOPICS)
    set_value(cluster, f"{prefix}steps", "retention.ms", "86400000")
    old = with_settings(old, stack={"external": ["broker", "registry"]})  # of an embedded one, they are its own
    refusal = stepstream(old, "topics", "apply")
    assert refusal.status == 1
    assert "--adopt" in refusal.stderr
    assert prefix + OWNED_TOPICS not in cluster.list_topics(timeout=TIMEOUT_S).topics
    done = stepstream(old, "topics", "apply", "--adopt", "all", "--json")
    assert done.status == 0, done.stderr
    created = {row["name"] for row in orjson.loads(done.stdout) if row["action"] == "created"}
    assert created == {f"{prefix}rollouts", f"{prefix}alarms"}
    status, rows = plan(old)
    assert status == 0
    assert {row["action"] for row in rows.values()} == {"leave"}
    assert state(cluster, [f"{prefix}steps"])[f"{prefix}steps"][1]["retention.ms"] == "86400000"
    assert admin.apply(old) == []
