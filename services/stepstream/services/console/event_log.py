"""Write the console's events to Kafka, one at a time, and wait until each is durable."""

import threading
from typing import Any

from confluent_kafka import KafkaException

from stepstream.config import Settings
from stepstream.crypto.key_ring import sealing_codec
from stepstream.topics.codec import Codec, RegistryUnavailable
from stepstream.topics.producer import DeliveryFailed, EventProducer

_DEADLINE_S = 10.0


class LogUnavailable(Exception):
    """Kafka or the registry does not answer; the event may become durable later."""


class EventLog:
    """A producer that connects at its first use. Thread-safe; close it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._codec: Codec | None = None
        self._producer: EventProducer | None = None
        self._lock = threading.Lock()

    def publish(self, topic: str, key: str, record: Any) -> None:
        """Send a record; block until Kafka has acknowledged it.

        Raises:
            LogUnavailable: it has not within 10 seconds.
        """
        with self._lock:
            try:
                if self._producer is None:
                    self._producer = EventProducer(self._settings.kafka, self._own_codec(), "console", linger_ms=0)
                self._producer.send(topic, key, record)
                self._producer.flush(_DEADLINE_S)
            except (DeliveryFailed, KafkaException, RegistryUnavailable, BufferError) as error:
                raise LogUnavailable(f"the event could not be written: {error}") from error

    def codec(self) -> Codec:
        """Return the codec of the events, which also opens sealed records."""
        with self._lock:
            return self._own_codec()

    def _own_codec(self) -> Codec:
        if self._codec is None:
            self._codec = sealing_codec(self._settings)
        return self._codec

    def close(self) -> None:
        """Close the registry's client."""
        if self._codec is not None:
            self._codec.close()
