"""The Faust app of a job, with the settings that were measured to matter (docs/decisions).

Keeps the logs of the libraries below Faust readable.
"""

import hashlib
import logging
import socket
import ssl
import time

import faust
from faust.types.auth import CredentialsT

from stepstream.config import KafkaSettings, Settings
from stepstream.jobs.runtime.processor import group, state_folder

_EVERY_S = 10.0


class _Calm(logging.Filter):
    """Passes at most one record every ten seconds: a client repeats ten times a second that its broker is away."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _EVERY_S
        return True


def quiet_libraries() -> None:
    """Leaves out what is logged once a batch or request, and thins out repeated complaints."""
    for name in ("faust", "mode", "aiokafka", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    calm = _Calm()
    for name in ("aiokafka", "aiokafka.conn", "aiokafka.consumer.fetcher", "aiokafka.consumer.group_coordinator"):
        logging.getLogger(name).addFilter(calm)


def build_app(settings: Settings, name: str) -> faust.App:
    """An app that reads in the group `stepstream-NAME` and commits at least once."""
    folder = state_folder(settings) / "faust"
    folder.mkdir(parents=True, exist_ok=True)  # Faust makes its own folder, not the ones above it
    brokers = [f"aiokafka://{address}" for address in settings.kafka.bootstrap.split(",")]
    return faust.App(
        group(name),
        broker=brokers,
        broker_credentials=credentials(settings.kafka),
        broker_commit_interval=1.0,
        broker_max_poll_records=2000,
        # A static member: restarted within the session timeout, it has its partitions back at once. A shorter one, and
        # on a machine that is busy for a while a job that runs is taken for dead.
        broker_session_timeout=30.0,
        broker_heartbeat_interval=3.0,
        consumer_group_instance_id=_instance(settings, name),
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


def _instance(settings: Settings, name: str) -> str:
    """Names this worker for good. Its state folder can be used by one process at a time, so it tells workers apart."""
    place = f"{socket.gethostname()}:{state_folder(settings).resolve()}"
    return f"{name}-{hashlib.sha256(place.encode()).hexdigest()[:16]}"


def credentials(kafka: KafkaSettings) -> CredentialsT | None:
    """How Faust authenticates; None for an open cluster."""
    context = None
    if kafka.security_protocol.endswith("SSL"):
        context = ssl.create_default_context(cafile=kafka.ssl_ca_location or None)
    if kafka.security_protocol.startswith("SASL"):
        return faust.SASLCredentials(
            username=kafka.sasl_username,
            password=kafka.sasl_password.get_secret_value(),
            ssl_context=context,
            mechanism=kafka.sasl_mechanism,
        )
    return None if context is None else faust.SSLCredentials(context)
