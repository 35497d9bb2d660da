"""Test that names get the prefix on the way to the cluster, and lose it on the way back."""

import inspect
import re
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pydantic import ValidationError

from stepstream.config import KafkaSettings
from stepstream.topics.client import admin_client, consumer, producer
from stepstream.topics.prefixed_clients import (
    WITHOUT_NAMES,
    Names,
    PrefixedAdminClient,
    PrefixedConsumer,
    PrefixedProducer,
)

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


def signature_of(method: Any) -> str:
    """Return a method's parameters and result; of a method in C, the first lines of its documentation."""
    try:
        return str(inspect.signature(method))
    except ValueError:
        return "\n".join((method.__doc__ or "").strip().splitlines()[:1])


@pytest.mark.parametrize(
    ("client", "base"), [(PrefixedConsumer, Consumer), (PrefixedProducer, Producer), (PrefixedAdminClient, AdminClient)]
)
def test_no_method_passes_a_name_on_as_it_is(client: type, base: type) -> None:
    for name in (name for name in dir(base) if not name.startswith("_")):
        method = getattr(client, name)
        assert name in vars(client) or name in WITHOUT_NAMES
        if name in WITHOUT_NAMES:
            parameters = signature_of(getattr(base, name)).partition("(")[2]
            assert not re.search("topic|partition|group|offset|message|resource", parameters, re.IGNORECASE), name
        elif method.__name__ == "refuse":
            with pytest.raises(NotImplementedError, match=name):
                method(None)
        else:
            source = inspect.getsource(method)
            assert "_names" in source or "_full" in source or name == "poll", name
