"""Confirmed producers deliver to the mock broker of Kafka's client."""

from typing import Any, cast

import pytest
from sample_records import step

from stepstream.config import load
from stepstream.delivery import confirmed_producer
from stepstream.delivery.confirmed_producer import ConfirmedProducer
from stepstream.delivery.spooled_producer import SpooledProducer
from stepstream.delivery.types import Event
from stepstream.topics import client
from stepstream.topics.codec import HEADER, Codec
from stepstream.topics.producer import EventProducer


class SpooledWithoutKeys:
    """The part of a `SpooledProducer` that confirmed producers use, without pending keys."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    def has_pending_keys(self) -> bool:
        return False


async def test_idle_producers_reuse_their_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "client_config", lambda kafka: {"test.mock.num.brokers": 1})
    settings = load({})
    codec = Codec(settings)
    monkeypatch.setattr(codec, "header", lambda topic: HEADER.pack(0, 1))
    producers = []

    def connect(*arguments: Any, **options: Any) -> EventProducer:
        producers.append(EventProducer(*arguments, **options))
        return producers[-1]

    monkeypatch.setattr(confirmed_producer, "EventProducer", connect)
    producer_under_test = ConfirmedProducer(settings.kafka, cast(SpooledProducer, SpooledWithoutKeys(codec)), "test/1")
    event = Event("steps", "t", step())
    try:
        for _ in range(3):  # the producer is idle each time
            await producer_under_test.deliver([event], 10.0)
        assert len(producers) == 1
    finally:
        producer_under_test.close()
        codec.close()
