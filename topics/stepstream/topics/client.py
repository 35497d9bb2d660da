"""Kafka client configuration from the settings, and waiting for a broker that is not there yet."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from stepstream.config import KafkaSettings, SettingsError

log = logging.getLogger(__name__)


class KafkaUnavailable(Exception):
    """No broker answered within the declared deadline; the message says which address and what to check."""


def client_config(kafka: KafkaSettings) -> dict[str, Any]:
    """What every confluent-kafka client needs to reach the cluster, security included."""
    config: dict[str, Any] = {
        "bootstrap.servers": kafka.bootstrap,
        "security.protocol": kafka.security_protocol,
        "error_cb": _log_error,
        # librdkafka's own log repeats each refused connection (40 lines a second while a broker is away).
        "log_level": 2,
        # An embedded broker restarts within seconds: find it again soon.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "allow.auto.create.topics": False,
    }
    if kafka.security_protocol.startswith("SASL"):
        config["sasl.mechanism"] = kafka.sasl_mechanism
        config["sasl.username"] = kafka.sasl_username
        config["sasl.password"] = kafka.sasl_password.get_secret_value()
    if kafka.ssl_ca_location:
        config["ssl.ca.location"] = kafka.ssl_ca_location
    return config


@contextmanager
def usable_settings() -> Iterator[None]:
    """Within it a client is made.

    Raises:
        SettingsError: settings with which there can be none, as a certificate authority's file that is not there.
    """
    try:
        yield
    except KafkaException as error:
        if error.args[0].code() != KafkaError._INVALID_ARG:
            raise
        raise SettingsError(f"kafka: {error.args[0].str()}: look at STEPSTREAM_KAFKA_…") from None


def admin_client(kafka: KafkaSettings, logger: logging.Logger | None = None) -> AdminClient:
    """An admin client; `logger` gets what librdkafka says. Keep a reference to it while its futures run.

    Raises:
        SettingsError: as `usable_settings`.
    """
    with usable_settings():
        return AdminClient(client_config(kafka), **({} if logger is None else {"logger": logger}))


def wait_for_kafka(kafka: KafkaSettings, stopping: Callable[[], bool] = lambda: False) -> None:
    """Blocks until a broker answers, or `stopping` tells that the process is asked to end.

    Raises:
        KafkaUnavailable: none did within `kafka.deadline_s` seconds.
        SettingsError: as `admin_client`.
    """
    admin = admin_client(kafka)
    deadline = time.monotonic() + kafka.deadline_s
    told = False
    while not stopping():
        fault = _fault(admin, min(2.0, kafka.deadline_s))
        if not fault:
            return
        if time.monotonic() >= deadline:
            raise KafkaUnavailable(
                f"no Kafka broker answers at {kafka.bootstrap} after {kafka.deadline_s:g} s ({fault}): "
                "start it, or set STEPSTREAM_KAFKA_BOOTSTRAP"
            )
        if not told:
            log.warning("waiting for a Kafka broker at %s", kafka.bootstrap)
            told = True


def _fault(admin: AdminClient, timeout_s: float) -> str:
    """Why the cluster cannot be used yet; empty: it can."""
    try:
        brokers = admin.list_topics(timeout=timeout_s).brokers
    except KafkaException as error:
        return str(error.args[0].str())
    if not brokers:
        time.sleep(0.1)  # one that answers before the controller knows it: soon
        return "it lists no brokers"
    return ""


def _log_error(error: Any) -> None:
    # Connection faults mend themselves and are told once by whoever waits; only a wrong password shows just here.
    log.log(logging.ERROR if error.fatal() or "AUTHENTICATION" in error.name() else logging.DEBUG, "Kafka: %s", error)
