"""Test the codec, the producer and the consumer with a real broker and registry."""

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from waiting import wait_until

from stepstream.config import Settings
from stepstream.topics import admin
from stepstream.topics.codec import Codec, Malformed, Unencodable, UnknownSchema
from stepstream.topics.consumer import Event, EventConsumer
from stepstream.topics.events import Feedback, new_feedback
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer


@pytest.fixture(scope="module")
def settings(registry_settings: Settings) -> Settings:
    admin.apply(registry_settings)
    return registry_settings


@pytest.fixture
def codec(settings: Settings) -> Iterator[Codec]:
    codec = Codec(settings)
    yield codec
    codec.close()


def feedback(trajectory_id: str = "t1") -> Feedback:
    return new_feedback(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        producer="test",
        consent="train",
        trajectory_id=trajectory_id,
        name="outcome",
        value=1.0,
        source="environment",
    )


def test_applying_the_catalogue_twice_changes_nothing(settings: Settings) -> None:
    assert admin.apply(settings) == []


def test_the_stock_deserializer_reads_encoded_records(settings: Settings, codec: Codec) -> None:
    record = feedback()
    value = codec.encode("feedback", record)
    with SchemaRegistryClient({"url": settings.schema_registry.url}) as client:
        assert AvroDeserializer(client)(value, SerializationContext("feedback", MessageField.VALUE)) == record
    assert codec.decode("feedback", value) == record


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (None, Malformed),
        (b"", Malformed),
        (b"{}", Malformed),
        (b'{"json": "not avro"}', Malformed),
        (struct.pack(">bI", 0, 999_999) + b"x", UnknownSchema),
    ],
)
def test_foreign_bytes_are_malformed_or_of_an_unknown_schema(
    codec: Codec, value: bytes | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        codec.decode("feedback", value)


def test_cut_padded_and_misplaced_records_are_malformed(codec: Codec) -> None:
    value = codec.encode("feedback", feedback())
    for topic, wrong in (
        ("feedback", value[:-1]),
        ("feedback", value + b"\x00"),
        ("feedback", value[:6]),
        ("steps", value),
    ):
        with pytest.raises(Malformed):
            codec.decode(topic, wrong)


def test_an_invalid_record_is_not_encoded(codec: Codec) -> None:
    wrong = {**feedback(), "value": "high"}
    with pytest.raises(Unencodable, match="Feedback"):
        codec.encode("feedback", wrong)


@pytest.fixture
def consumer(settings: Settings, codec: Codec) -> Iterator[EventConsumer]:
    with EventConsumer(settings.kafka, codec) as consumer:
        yield consumer


def test_records_are_read_in_the_order_sent(settings: Settings, codec: Codec, consumer: EventConsumer) -> None:
    producer = EventProducer(settings.kafka, codec, "test/1")
    sent = [feedback("wire-order") for _ in range(100)]
    for record in sent:
        producer.send("feedback", record["trajectory_id"], record)
    producer.flush()
    consumer.follow(["feedback"])
    read: list[Event] = []

    def all_read() -> bool:
        read.extend(event for event in consumer.poll(1000, 0.5) if event.key == "wire-order")
        return consumer.is_caught_up()

    wait_until(all_read)
    assert [event.record for event in read] == sent


def test_the_consumer_reports_unhandled_records(settings: Settings, codec: Codec, consumer: EventConsumer) -> None:
    producer = EventProducer(settings.kafka, codec, "test/1")
    record = feedback("wire-beyond")
    producer.send("feedback", "wire-beyond", record)
    producer.flush()
    consumer.follow(["feedback"])
    assert consumer.has_records_beyond({})  # before anything was read
    handled: dict[tuple[str, int], int] = {}

    def read_all() -> bool:
        for event in consumer.poll(1000, 0.2):
            handled[event.topic, event.partition] = event.offset + 1
        return not consumer.has_records_beyond(handled)

    wait_until(read_all)
    producer.send("feedback", "wire-beyond", record)
    producer.flush()
    wait_until(lambda: consumer.has_records_beyond(handled))  # fetched in the background but not polled
    wait_until(read_all)


def test_events_carry_cloudevents_headers(settings: Settings, codec: Codec) -> None:
    producer = EventProducer(settings.kafka, codec, "test/1")
    record = feedback("wire-headers")
    producer.send("feedback", "wire-headers", record, headers={"traceparent": "00-abc"})
    producer.flush()
    stock = Consumer({"bootstrap.servers": settings.kafka.bootstrap, "group.id": "h", "auto.offset.reset": "earliest"})
    stock.subscribe(["feedback"])
    headers: dict[str, Any] = {}

    def has_arrived() -> bool:
        # Other tests share the topic: read all that has come before the next pause.
        for message in stock.consume(1000, 1.0):
            if message.key() == b"wire-headers":
                headers.update(message.headers() or [])
        return bool(headers)

    wait_until(has_arrived)
    stock.close()
    assert headers["ce_id"] == record["event_id"].encode()
    assert headers["ce_type"] == b"stepstream.Feedback"
    assert headers["ce_specversion"] == b"1.0"
    assert headers["ce_time"].endswith(b"+00:00")
    assert headers["traceparent"] == b"00-abc"
