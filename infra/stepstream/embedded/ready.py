"""Check that a part is ready: Kafka lists its topics, the registry its subjects, an HTTP address answers 200."""

import logging
import socket
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from confluent_kafka import KafkaException

from stepstream.config import KafkaSettings, SchemaRegistrySettings, masked
from stepstream.topics.client import admin_client
from stepstream.topics.registry_client import RegistryClient, RegistryRefused

_TIMEOUT_S = 2.0
# Discards librdkafka's reports of refused connections, which are normal while a broker starts.
SILENT = logging.getLogger("stepstream.embedded.ready.librdkafka")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False


class Ready(Protocol):
    """A readiness check."""

    def __call__(self) -> bool:
        """Return True if the part is ready; one attempt of at most 2 s. False if it does not answer.

        Raises:
            SettingsError: the settings allow no client.
        """
        ...

    @property
    def address(self) -> str:
        """Address of the part, for messages."""
        ...


@dataclass(frozen=True)
class KafkaReady:
    """Ready when the brokers list their topics."""

    kafka: KafkaSettings

    @property
    def address(self) -> str:
        """The bootstrap list."""
        return self.kafka.bootstrap

    def is_listening(self) -> bool:
        """Return True if a broker accepts connections; it may still be starting, or busy."""
        return any(_accepts(broker) for broker in self.kafka.brokers)

    def __call__(self) -> bool:
        """Connect to the brokers, then list the topics."""
        if not self.is_listening():
            return False  # faster than librdkafka, which retries with back-off until the timeout
        try:
            client = admin_client(self.kafka, SILENT)
            return bool(client.list_topics(timeout=_TIMEOUT_S).brokers)
        except KafkaException:
            return False


@dataclass(frozen=True)
class RegistryReady:
    """Ready when the registry lists its subjects for the configured credentials."""

    registry: SchemaRegistrySettings

    @property
    def address(self) -> str:
        """Addresses of the registry, without credentials."""
        return masked(self.registry.url)

    def __call__(self) -> bool:
        """List the subjects."""
        try:
            self._client.subjects()
        except (OSError, ValueError, RegistryRefused):
            return False
        return True

    @cached_property
    def _client(self) -> RegistryClient:
        return RegistryClient(self.registry.model_copy(update={"timeout_s": _TIMEOUT_S}), attempts=1)


@dataclass(frozen=True)
class HttpReady:
    """Ready when a GET of `url` answers 200 with a body that includes `contains`."""

    url: str
    contains: str = ""

    @property
    def address(self) -> str:
        """The URL."""
        return self.url

    def __call__(self) -> bool:
        """Send the GET."""
        try:
            with urllib.request.urlopen(self.url, timeout=_TIMEOUT_S) as response:
                return response.status == 200 and (
                    not self.contains or self.contains in response.read().decode(errors="replace")
                )
        except (OSError, urllib.error.HTTPError, ValueError):
            return False


def _accepts(broker: str) -> bool:
    host, _, port = broker.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False
