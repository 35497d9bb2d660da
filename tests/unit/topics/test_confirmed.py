"""Confirmed deliveries, against the broker that Kafka's client has for tests."""

from typing import Any, cast

import pytest
from sample_records import step

from stepstream.config import load
from stepstream.delivery import confirmed_producer as confirmed_module
from stepstream.delivery.confirmed_producer import ConfirmedProducer
from stepstream.delivery.spooled_producer import SpooledProducer
from stepstream.delivery.types import Event
from stepstream.topics import producer
from stepstream.topics.codec import HEADER, Codec
from stepstream.topics.producer import EventProducer


class _Keyless:
    """A delivery that lends its codec and has no keys to send."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    def keys_waiting(self) -> bool:
        return False


async def test_one_connection_serves_all_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "client_config", lambda kafka: {"test.mock.num.brokers": 1})
    settings = load({})
    codec = Codec(settings.schema_registry)
    monkeypatch.setattr(codec, "header", lambda topic: HEADER.pack(0, 1))
    made = []

    def counted(*arguments: Any, **options: Any) -> EventProducer:
        made.append(EventProducer(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(confirmed_module, "EventProducer", counted)
    confirmed = ConfirmedProducer(settings.kafka, cast(SpooledProducer, _Keyless(codec)), "test/1")
    event = Event("steps", "t", step())
    try:
        for _ in range(3):  # each finds the producer idle
            await confirmed.deliver([event], 10.0)
        assert len(made) == 1
    finally:
        confirmed.close()
        codec.close()
