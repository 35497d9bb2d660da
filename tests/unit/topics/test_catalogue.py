"""The catalogue has a constant for each topic, and declares only personal fields that exist."""

import pytest

from stepstream.config import InferenceSettings, Settings
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


def test_the_status_of_a_worker_that_is_gone_does_not_stay_for_ever() -> None:
    topic = TOPICS[catalogue.WORKER_STATUS]
    config = topic.settings(Settings())
    assert (config["cleanup.policy"], config["retention.ms"]) == ("compact,delete", str(7 * 86_400_000))
    assert topic.is_compacted
    assert topic.retention == "newest of each key, 7 days"
    # A worker repeats its status before Kafka deletes it.
    with pytest.raises(ValueError, match="less than or equal to 86400"):
        InferenceSettings(status_every_s=86_401)


def test_tables_keep_the_newest_record_of_each_key_for_ever() -> None:
    forgetful = {topic.name for topic in TOPICS.values() if topic.is_compacted and topic.cleanup != "compact"}
    assert forgetful == {catalogue.WORKER_STATUS}
    assert "retention.ms" not in TOPICS[catalogue.CHECKPOINTS].settings(Settings())
