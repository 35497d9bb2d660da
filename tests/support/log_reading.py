"""Read topics up to the end that they have now."""

from collections.abc import Mapping

from stepstream.config import Settings
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import Event, EventConsumer

QUICK_END: dict[str, str | int] = {"fetch.wait.max.ms": 20}
"""Configuration of a consumer that awaits the ends of partitions: a broker reports an end after this wait, by default
after half a second."""


def read_to_end(
    settings: Settings, codec: Codec, *topics: str, start: Mapping[tuple[str, int], int] | None = None
) -> list[Event]:
    """Return the events of topics, all or those from the offsets `start` by (topic, partition)."""
    events: list[Event] = []
    with EventConsumer(settings.kafka, codec, config=QUICK_END) as consumer:
        consumer.follow(topics, start)
        while not consumer.is_caught_up():
            events += consumer.poll(1000, 0.05)
    return events
