"""Test that names get the prefix on the way to the cluster, and lose it on the way back."""

from types import SimpleNamespace

import pytest
from confluent_kafka import Message, TopicPartition
from pydantic import ValidationError

from stepstream.config import KafkaSettings
from stepstream.topics.client import admin_client, consumer, producer
from stepstream.topics.prefixed_clients import Names, PrefixedAdminClient, PrefixedConsumer, PrefixedProducer

NAMES = Names("blue.")


def test_names_go_and_return() -> None:
    [full] = NAMES.full_partitions([TopicPartition("steps", 3, 7, "text")])
    assert (full.topic, full.partition, full.offset, full.metadata) == ("blue.steps", 3, 7, "text")
    [short] = NAMES.short_partitions([full])
    assert (short.topic, short.partition, short.offset, short.metadata) == ("steps", 3, 7, "text")
    assert NAMES.shorten(Message(topic="blue.steps")).topic() == "steps"


def test_groups_and_transactions_have_the_prefix() -> None:
    config = {"group.id": "g", "transactional.id": "t", "client.id": "c"}
    assert NAMES.config(config) == {"group.id": "blue.g", "transactional.id": "blue.t", "client.id": "c"}


def test_topics_of_others_are_not_listed() -> None:
    topics = {name: SimpleNamespace(topic=name) for name in ("steps", "blue.steps", "green.steps")}
    metadata = NAMES.short_topics(SimpleNamespace(topics=topics))
    assert list(metadata.topics) == ["steps"]
    assert metadata.topics["steps"].topic == "steps"


def test_only_a_prefix_makes_prefixed_clients() -> None:
    plain, blue = KafkaSettings(bootstrap="127.0.0.1:9"), KafkaSettings(bootstrap="127.0.0.1:9", prefix="blue.")
    kinds = (PrefixedConsumer, PrefixedProducer, PrefixedAdminClient)
    group = {"group.id": "g"}
    assert not any(isinstance(c, kinds) for c in (consumer(plain, group), producer(plain, {}), admin_client(plain)))
    assert isinstance(consumer(blue, group), PrefixedConsumer)
    assert isinstance(producer(blue, {}), PrefixedProducer)
    assert isinstance(admin_client(blue), PrefixedAdminClient)


@pytest.mark.parametrize("prefix", ["blue", ".", "a.b.", "blue_", "ü."])
def test_a_prefix_that_could_meet_another_is_refused(prefix: str) -> None:
    with pytest.raises(ValidationError):
        KafkaSettings(prefix=prefix)
