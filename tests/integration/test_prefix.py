"""Run two Stepstreams with different prefixes on one cluster: neither sees or changes anything of the other."""

import struct
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from stack_fixtures import with_settings
from stack_world import World
from waiting import wait_until

from stepstream.cli import doctor_services
from stepstream.config import Settings
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.topics import admin
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.client import client_config
from stepstream.topics.registry_client import RegistryClient
from stepstream.topics.topic_plan import OWNED_TOPICS, PartitionsDiffer

JOBS = ("govern", "label")
PREFIX = "blue."


@pytest.fixture(scope="module")
def plain(base_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    wanted = with_settings(isolated(base_settings, tmp_path_factory.mktemp("plain")), topics={"partitions": 2})
    with Stack(wanted, ["broker", "registry", *JOBS]) as stack:
        yield stack.settings


@pytest.fixture(scope="module")
def blue(base_settings: Settings, plain: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    wanted = with_settings(
        isolated(base_settings, tmp_path_factory.mktemp("blue")),
        kafka={"bootstrap": plain.kafka.bootstrap, "prefix": PREFIX},
        schema_registry={"url": plain.schema_registry.url},
        topics={"partitions": 3},
    )
    with Stack(wanted, ["broker", "registry", *JOBS]) as stack:
        yield stack.settings


def transactional_ids(settings: Settings) -> set[str]:
    """Return the ids in the cluster's own topic of transactions."""
    config = {"group.id": "test", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    consumer = Consumer(client_config(settings.kafka) | config)
    partitions = consumer.list_topics("__transaction_state", timeout=10).topics["__transaction_state"].partitions
    consumer.assign([TopicPartition("__transaction_state", number, 0) for number in partitions])
    found: set[str] = set()
    ended: set[int | None] = set()
    while len(ended) < len(partitions):
        for message in consumer.consume(500, 0.1):
            if message.error() is not None:
                ended.add(message.partition())
                continue
            key = message.key() or b""
            version, length = struct.unpack_from(">hh", key)
            assert version == 0
            found.add(key[4 : 4 + length].decode())
    consumer.close()
    return found


def test_each_labels_its_own_trajectories(plain: Settings, blue: Settings) -> None:
    for settings, names in ((plain, ["same", "a"]), (blue, ["same", "b", "c"])):
        with World(settings) as world:
            world.send_trajectories(*names)
    for settings, names in ((plain, ["same", "a"]), (blue, ["same", "b", "c"])):
        with World(settings) as world:
            wait_until(
                lambda world=world, names=names: (
                    sorted(  # type: ignore[misc]
                        label["trajectory_id"] for label in world.records("labeled-trajectories")
                    )
                    == sorted(names)
                ),
                "each has the labels of its own trajectories",
            )


def test_every_name_in_the_cluster_has_the_prefix(plain: Settings, blue: Settings) -> None:
    client = AdminClient(client_config(plain.kafka))
    topics = {name for name in client.list_topics(timeout=10).topics if not name.startswith("_")}
    assert topics == {prefix + name for prefix in ("", PREFIX) for name in (*TOPICS, OWNED_TOPICS)}
    groups = {f"{prefix}stepstream-{job}" for prefix in ("", PREFIX) for job in JOBS}
    assert {listing.group_id for listing in client.list_consumer_groups().result().valid} == groups
    ids = sorted(one.rsplit("-", 1)[0] for one in transactional_ids(plain) if "registry" not in one)
    assert ids == sorted(groups)
    subjects = {topic.subject for topic in TOPICS.values()}
    assert set(RegistryClient(plain.schema_registry).subjects()) == {*subjects, *(PREFIX + one for one in subjects)}


def test_each_has_its_own_number_of_partitions(plain: Settings, blue: Settings) -> None:
    for settings in (plain, blue):
        assert admin.apply(settings) == []
        assert doctor_services.broker(settings).state == doctor_services.registry(settings).state == "ok"
    with pytest.raises(PartitionsDiffer):
        admin.apply(with_settings(blue, topics={"partitions": 2}))
    missing = doctor_services.broker(with_settings(blue, kafka={"prefix": "green."}))
    assert "green.steps" in missing.detail
