"""The catalogue has a constant for each topic, and declares only personal fields that exist."""

import pytest

from stepstream.schemas import schema
from stepstream.topics import catalogue
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.topic import Topic


def test_each_topic_has_a_constant_of_its_name() -> None:
    constants = {name: value for name, value in vars(catalogue).items() if name.isupper() and isinstance(value, str)}
    assert {name.lower().replace("_", "-") for name in constants} == set(TOPICS)
    assert set(constants.values()) == set(TOPICS)


@pytest.mark.parametrize("topic", TOPICS.values(), ids=list(TOPICS))
def test_personal_fields_are_fields_of_the_schema(topic: Topic) -> None:
    assert set(topic.personal) <= {field["name"] for field in schema(topic.schema)["fields"]}
