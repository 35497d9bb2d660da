"""Test the encoded group membership against the client library, whose format it is."""

from typing import Any

import pytest
from confluent_kafka import Consumer

from stepstream.jobs.runtime.fetch import GroupMember


@pytest.mark.parametrize("instance", [None, "one"])
def test_a_member_is_encoded_as_by_the_client_library(instance: str | None) -> None:
    config: dict[str, Any] = {"bootstrap.servers": "localhost:1", "group.id": "group", "log_level": 0}
    if instance is not None:
        config["group.instance.id"] = instance
    consumer = Consumer(config)
    try:
        encoded = consumer.consumer_group_metadata()
    finally:
        consumer.close()
    assert GroupMember("group", -1, "", instance).encode() == encoded
