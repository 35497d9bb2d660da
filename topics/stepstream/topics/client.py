"""Configure Kafka clients from the settings, and wait for a broker at start."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from stepstream.config import KafkaSettings, SettingsError
from stepstream.core.process import Fatal
from stepstream.topics.prefixed_clients import PrefixedAdminClient, PrefixedConsumer, PrefixedProducer

log = logging.getLogger(__name__)


class KafkaUnavailable(Fatal):
    """No broker answered within the deadline. The message names the address and the setting to check."""


def wait_for_kafka(kafka: KafkaSettings, stopping: Callable[[], bool] = lambda: False) -> None:
    """Block until a broker answers or `stopping` returns True.

    Raises:
        KafkaUnavailable: no broker answered within `kafka.deadline_s` seconds.
        SettingsError: as `reporting_invalid_settings`.
    """
    admin = admin_client(kafka)
    deadline = time.monotonic() + kafka.deadline_s
    is_logged = False
    while not stopping():
        fault = _fault(admin, min(2.0, kafka.deadline_s))
        if not fault:
            return
        if time.monotonic() >= deadline:
            raise KafkaUnavailable(
                f"no Kafka broker answers at {kafka.bootstrap} after {kafka.deadline_s:g} s ({fault}): "
                "start it, or set STEPSTREAM_KAFKA_BOOTSTRAP"
            )
        if not is_logged:
            log.warning("waiting for a Kafka broker at %s", kafka.bootstrap)
            is_logged = True


def _fault(admin: AdminClient, timeout_s: float) -> str:
    """Return the reason why the cluster is not usable yet; empty: it is."""
    try:
        brokers = admin.list_topics(timeout=timeout_s).brokers
    except KafkaException as error:
        return str(error.args[0].str())
    if not brokers:
        time.sleep(0.1)  # the broker answers before the controller has registered it
        return "it lists no brokers"
    return ""


def admin_client(kafka: KafkaSettings, logger: logging.Logger | None = None) -> AdminClient:
    """Return an admin client in the catalogue's names; `logger` receives librdkafka's log.

    Keep a reference to it while its futures run.

    Raises:
        SettingsError: as `reporting_invalid_settings`.
    """
    options = {} if logger is None else {"logger": logger}
    with reporting_invalid_settings():
        if kafka.prefix:
            return PrefixedAdminClient(client_config(kafka), kafka.prefix, **options)
        return AdminClient(client_config(kafka), **options)


def consumer(kafka: KafkaSettings, config: Mapping[str, Any]) -> Consumer:
    """Return a consumer in the catalogue's names; `config` are settings beyond the connection.

    Raises:
        SettingsError: as `reporting_invalid_settings`.
    """
    with reporting_invalid_settings():
        full = client_config(kafka) | dict(config)
        return PrefixedConsumer(full, kafka.prefix) if kafka.prefix else Consumer(full)


def producer(kafka: KafkaSettings, config: Mapping[str, Any]) -> Producer:
    """Return a producer as `consumer` does.

    Raises:
        SettingsError: as `reporting_invalid_settings`.
    """
    with reporting_invalid_settings():
        full = client_config(kafka) | dict(config)
        return PrefixedProducer(full, kafka.prefix) if kafka.prefix else Producer(full)


@contextmanager
def reporting_invalid_settings() -> Iterator[None]:
    """Convert the error of a client that cannot be created with these settings.

    Raises:
        SettingsError: a setting is invalid, as a missing file of the certificate authority.
    """
    try:
        yield
    except KafkaException as error:
        if error.args[0].code() != KafkaError._INVALID_ARG:
            raise
        raise SettingsError(f"kafka: {error.args[0].str()}: look at STEPSTREAM_KAFKA_…") from None


def client_config(kafka: KafkaSettings) -> dict[str, Any]:
    """Return the configuration of a connection, including security. Names of `kafka.prefix` are the caller's duty."""
    return {
        "bootstrap.servers": ",".join(kafka.brokers),
        "security.protocol": kafka.security_protocol,
        "error_cb": _log_error,
        # librdkafka's own log repeats each refused connection (40 lines a second while a broker is away).
        "log_level": 2,
        # An embedded broker restarts within seconds: find it again soon.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "allow.auto.create.topics": False,
        **{name: text for name, text in _security(kafka).items() if text},
    }


def append_time_us(message: Message) -> int | None:
    """Return the time at which the broker wrote a record, in microseconds since the Unix epoch.

    None: the topic's configuration leaves the time to the producers, whose clocks differ.
    """
    kind, time_ms = message.timestamp()
    return time_ms * 1000 if kind == TIMESTAMP_LOG_APPEND_TIME else None


def _security(kafka: KafkaSettings) -> dict[str, str]:
    """Return the settings of TLS and SASL; empty texts are unset."""
    texts: dict[str, str] = {}
    if kafka.uses_tls:
        texts |= {
            "ssl.ca.location": kafka.ssl_ca_location,
            "ssl.certificate.location": kafka.ssl_certificate_location,
            "ssl.key.location": kafka.ssl_key_location or kafka.ssl_certificate_location,
            "ssl.key.password": kafka.ssl_key_password.get_secret_value(),
        }
    if kafka.uses_oauth:
        texts |= {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": kafka.oauth_client_id,
            "sasl.oauthbearer.client.secret": kafka.oauth_client_secret.get_secret_value(),
            "sasl.oauthbearer.token.endpoint.url": kafka.oauth_token_url,
            "sasl.oauthbearer.scope": kafka.oauth_scope,
            "https.ca.location": kafka.oauth_ca_location,
        }
    elif kafka.uses_sasl:
        texts |= {"sasl.username": kafka.sasl_username, "sasl.password": kafka.sasl_password.get_secret_value()}
    if kafka.uses_sasl:
        texts["sasl.mechanism"] = kafka.sasl_mechanism
    return texts


def _log_error(error: Any) -> None:
    # Clients recover from connection errors, and the waiting caller logs them. A wrong password appears only here.
    log.log(logging.ERROR if error.fatal() or "AUTHENTICATION" in error.name() else logging.DEBUG, "Kafka: %s", error)
