"""Test that readers reach the end of a log whose last offsets hold no record, as after each transaction."""

import uuid
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from waiting import wait_until

from stepstream.config import Settings
from stepstream.jobs.runtime.log_reader import LogReader
from stepstream.topics.client import admin_client, client_config
from stepstream.topics.consumer import EventConsumer


class RawCodec:
    """Returns the encoded value."""

    def decode(self, _topic: str, value: bytes | None) -> Any:
        return value


def committed(producer: Producer, topic: str) -> None:
    producer.begin_transaction()
    producer.produce(topic, b"committed")
    producer.commit_transaction()


def aborted(producer: Producer, topic: str) -> None:
    producer.begin_transaction()
    producer.produce(topic, b"aborted")
    producer.flush()
    producer.abort_transaction()


@pytest.fixture(params=[[committed], [committed, aborted], [aborted], [aborted, committed, aborted, aborted]])
def topic(request: pytest.FixtureRequest, broker_settings: Settings) -> tuple[str, list[bytes], int]:
    """A topic, its committed records, and its end offset."""
    name = f"positions-{uuid.uuid4().hex[:8]}"
    admin = admin_client(broker_settings.kafka)
    for future in admin.create_topics([NewTopic(name, 1, 1)]).values():
        future.result()
    producer = Producer(client_config(broker_settings.kafka) | {"transactional.id": name})
    producer.init_transactions(30)
    for transaction in request.param:
        transaction(producer, name)
    end = 2 * len(request.param)
    # The marker of a transaction may be written after its commit returns.
    with closing(Consumer(client_config(broker_settings.kafka) | {"group.id": "unused"})) as consumer:
        wait_until(lambda: consumer.get_watermark_offsets(TopicPartition(name, 0), 10.0)[1] == end)
    return name, [b"committed"] * request.param.count(committed), end


def test_the_consumer_has_no_records_beyond_its_position(
    broker_settings: Settings, topic: tuple[str, list[bytes], int]
) -> None:
    name, expected, end = topic
    with EventConsumer(broker_settings.kafka, RawCodec()) as consumer:  # type: ignore[arg-type]
        consumer.follow([name])
        assert consumer.has_records_beyond({})
        values: list[bytes] = []
        handled: dict[tuple[str, int], int] = {}

        def reached_the_end() -> bool:
            for event in consumer.poll(100, 0.2):
                values.append(event.record)
                handled[event.topic, event.partition] = event.offset + 1
            return consumer.is_caught_up()

        wait_until(reached_the_end)
        assert values == expected
        assert consumer.position(name, 0) == consumer.end_offsets(name)[0] == end
        assert not consumer.has_records_beyond(handled)
        if expected:
            assert consumer.has_records_beyond({}), "a record that was polled is not handled yet"


def test_a_range_of_the_log_ends_at_its_end(broker_settings: Settings, topic: tuple[str, list[bytes], int]) -> None:
    name, expected, end = topic
    with closing(LogReader(broker_settings.kafka, "positions", lambda: False)) as reader:
        assert reader.bounds(name, 0) == (0, end)
        batches = list(reader.read({(name, 0): (0, end)}))
        assert [record.value for batch in batches for record in batch] == expected
