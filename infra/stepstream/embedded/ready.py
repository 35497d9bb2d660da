"""What tells that a part is ready: a question asked again and again until its answer is right."""

import logging
import socket
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Protocol

from confluent_kafka import KafkaException

from stepstream.config import KafkaSettings, SchemaRegistrySettings, masked
from stepstream.topics.client import admin_client
from stepstream.topics.registry_client import RegistryClient, RegistryRefused

_TIMEOUT_S = 2.0
# librdkafka reports each refused connection; while something starts, that is what is expected.
SILENT = logging.getLogger("stepstream.embedded.ready.librdkafka")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False


class Ready(Protocol):
    """A readiness check."""

    def __call__(self) -> bool:
        """Asks once; blocks for 2 s at most; never raises for a part that is not there yet.

        Raises:
            SettingsError: with these settings it cannot be asked.
        """
        ...

    @property
    def address(self) -> str:
        """Where it asks, for messages."""
        ...


@dataclass(frozen=True)
class KafkaReady:
    """The brokers list their topics."""

    kafka: KafkaSettings

    @property
    def address(self) -> str:
        """The bootstrap list."""
        return self.kafka.bootstrap

    def __call__(self) -> bool:
        """Asks once."""
        if not any(_accepts(server) for server in self.address.split(",")):
            return False  # librdkafka would wait, with back-off, for what one look tells
        try:
            client = admin_client(self.kafka, SILENT)
            return bool(client.list_topics(timeout=_TIMEOUT_S).brokers)
        except KafkaException:
            return False


@dataclass(frozen=True)
class RegistryReady:
    """The registry lists its subjects, to whom it is told to trust."""

    registry: SchemaRegistrySettings

    @property
    def address(self) -> str:
        """Its addresses, without credentials."""
        return masked(self.registry.url)

    def __call__(self) -> bool:
        """Asks once."""
        asked = self.registry.model_copy(update={"timeout_s": _TIMEOUT_S})
        try:
            RegistryClient(asked, attempts=1).subjects()
        except (OSError, HTTPException, ValueError, RegistryRefused):
            return False
        return True


@dataclass(frozen=True)
class HttpReady:
    """A GET answers 200, with a text in it if one is named."""

    url: str
    contains: str = ""

    @property
    def address(self) -> str:
        """The address asked."""
        return self.url

    def __call__(self) -> bool:
        """Asks once."""
        try:
            with urllib.request.urlopen(self.url, timeout=_TIMEOUT_S) as response:
                return response.status == 200 and (
                    not self.contains or self.contains in response.read().decode(errors="replace")
                )
        except (OSError, urllib.error.HTTPError, ValueError):
            return False


def _accepts(server: str) -> bool:
    host, _, port = server.strip().rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False
