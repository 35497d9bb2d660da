"""Build the Faust app of a job with the measured settings (docs/decisions), and limit the logs of its libraries."""

import logging
import time

import faust
from faust.types.auth import CredentialsT

from stepstream.config import KafkaSettings, Settings
from stepstream.core.tls import client_context
from stepstream.jobs.runtime.oauth_tokens import OauthTokens
from stepstream.jobs.runtime.processor import consumer_group, state_folder, worker_instance

_LOG_INTERVAL_S = 10.0


def build_app(settings: Settings, name: str) -> faust.App:
    """Build an app that reads in the group `stepstream-NAME` and commits nothing itself."""
    folder = state_folder(settings) / "faust"
    folder.mkdir(parents=True, exist_ok=True)  # Faust creates its own folder, but not the parents
    brokers = [f"aiokafka://{address}" for address in settings.kafka.brokers]
    return faust.App(
        settings.kafka.prefix + consumer_group(name),
        broker=brokers,
        broker_credentials=credentials(settings.kafka),
        broker_commit_interval=60.0,  # it has nothing to commit: the job's transactions do
        # A static member that restarts within the session timeout gets its partitions back at once. On a busy machine,
        # a shorter timeout would expire while the job still runs.
        broker_session_timeout=settings.jobs.session_timeout_s,
        broker_heartbeat_interval=settings.jobs.session_timeout_s / 10,
        consumer_group_instance_id=worker_instance(settings, name),
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=16 * 1_048_576,
        datadir=str(folder),
        producer_linger=0.0,
        stream_wait_empty=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_enabled=False,
        autodiscover=False,
    )


def credentials(kafka: KafkaSettings) -> CredentialsT | None:
    """Return the credentials of Faust's connections; None for a cluster without security.

    Raises:
        SettingsError: a file of the settings cannot be read.
    """
    context = None
    if kafka.uses_tls:
        context = client_context(
            "kafka.ssl_",
            kafka.ssl_ca_location,
            kafka.ssl_certificate_location,
            kafka.ssl_key_location,
            kafka.ssl_key_password.get_secret_value(),
        )
    if kafka.uses_oauth:
        return faust.OAuthCredentials(oauth_cb=OauthTokens(kafka), ssl_context=context)
    if kafka.uses_sasl:
        return faust.SASLCredentials(
            username=kafka.sasl_username,
            password=kafka.sasl_password.get_secret_value(),
            ssl_context=context,
            mechanism=kafka.sasl_mechanism,
        )
    return None if context is None else faust.SSLCredentials(context)


def quiet_libraries() -> None:
    """Drop the log lines that come once per batch or request, and limit repeated warnings."""
    for name in ("faust", "mode", "aiokafka", "httpx2", "stepstream.jobs.runtime.transport"):
        logging.getLogger(name).setLevel(logging.WARNING)
    limit = _RateLimit()
    for name in ("aiokafka", "aiokafka.conn", "aiokafka.consumer.fetcher", "aiokafka.consumer.group_coordinator"):
        logging.getLogger(name).addFilter(limit)


class _RateLimit(logging.Filter):
    """Passes one record every ten seconds. Without a broker, clients log ten times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _LOG_INTERVAL_S
        return True
