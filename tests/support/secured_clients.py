"""Send and read with the credentials of a secured cluster, and name the errors of refusals."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth
from waiting import TIMEOUT_S, wait_until

from stepstream.config import KafkaSettings
from stepstream.jobs.runtime.faust_app import credentials
from stepstream.topics.client import client_config


def send(settings: KafkaSettings, topic: str, value: bytes, **config: Any) -> str:
    """Send a record; return the broker's error, empty: none."""
    errors: list[str] = []
    producer = Producer(client_config(settings) | config)
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error.name() if error else ""))
    assert producer.flush(TIMEOUT_S) == 0
    return errors[0]


async def values_read_by_aiokafka(settings: KafkaSettings, topic: str, group: str, count: int) -> list[bytes | None]:
    """Read as a job does: with the credentials that Faust gives to aiokafka."""
    consumer = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=settings.brokers,
        group_id=group,
        auto_offset_reset="earliest",
        **credentials_to_aiokafka_auth(credentials(settings)),
    )
    await consumer.start()
    try:
        return [(await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value for _ in range(count)]
    finally:
        await consumer.stop()


def refused(call: Callable[[], object]) -> str:
    """Return the name of the error that a call raises."""
    with pytest.raises(KafkaException) as raised:
        call()
    return str(raised.value.args[0].name())


def first_error(settings: KafkaSettings, topic: str, group: str) -> str:
    """Subscribe to a topic in a group, and return the name of the first error."""
    consumer = Consumer(client_config(settings) | {"group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    errors: list[str] = []

    def has_error() -> bool:
        found = [message.error() for message in consumer.consume(1, 0.2)]
        errors.extend(error.name() for error in found if error is not None)
        return bool(errors)

    wait_until(has_error)
    consumer.close()
    return errors[0]
