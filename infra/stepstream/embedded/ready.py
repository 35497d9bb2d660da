"""Check that a part is ready: Kafka lists its topics, the registry its subjects, an HTTP address answers 200."""

import logging
import socket
import ssl
import urllib.request
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPException
from typing import Protocol

from confluent_kafka import KafkaException

from stepstream.config import ClickHouseSettings, KafkaSettings, SchemaRegistrySettings, masked
from stepstream.config.bootstrap import parse_bootstrap
from stepstream.core.tls import client_context
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
        return any(_accepts(broker.host, broker.port) for broker in parse_bootstrap(self.kafka.bootstrap))

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
        return _answers(self.url, self.contains)


@dataclass(frozen=True)
class StoreReady:
    """Ready when ClickHouse, or the embedded store, answers a ping."""

    clickhouse: ClickHouseSettings

    @property
    def address(self) -> str:
        """The base address, without credentials."""
        return masked(self.clickhouse.url)

    def __call__(self) -> bool:
        """Send the ping.

        Raises:
            SettingsError: a file of a certificate cannot be read.
        """
        return _answers(f"{self.clickhouse.url}/ping", "Ok.", store_context(self.clickhouse))


def store_context(clickhouse: ClickHouseSettings) -> ssl.SSLContext:
    """Return the TLS context of plain HTTP calls to ClickHouse.

    Raises:
        SettingsError: a file of a certificate cannot be read.
    """
    files = (clickhouse.ca_location, clickhouse.certificate_location, clickhouse.key_location)
    return client_context("clickhouse.", *files)


def _answers(url: str, contains: str, context: ssl.SSLContext | None = None) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S, context=context) as response:
            return response.status == 200 and (not contains or contains in response.read().decode(errors="replace"))
    except (OSError, HTTPException, ValueError):
        return False


def _accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT_S):
            return True
    except OSError:
        return False
