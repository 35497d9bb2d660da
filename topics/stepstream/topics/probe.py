"""Find out whether Kafka answers, for readiness checks."""

import threading
import time

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from stepstream.config import KafkaSettings
from stepstream.topics import client

EVERY_S = 5.0
"""Age up to which an answer is used again."""
TIMEOUT_S = 2.0


class KafkaProbe:
    """Asks the cluster for its brokers. Threads may share it; it connects at its first use."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._admin: AdminClient | None = None
        self._lock = threading.Lock()
        self._asked_at = -EVERY_S
        self._fault = ""

    def fault(self) -> str:
        """Return why Kafka cannot be used; empty: it answers. Blocks for up to `TIMEOUT_S` seconds."""
        with self._lock:
            if time.monotonic() - self._asked_at >= EVERY_S:
                self._fault = self._ask()
                self._asked_at = time.monotonic()
            return self._fault

    def _ask(self) -> str:
        try:
            self._admin = self._admin or client.admin_client(self._kafka)
            brokers = self._admin.list_topics(timeout=TIMEOUT_S).brokers
        except KafkaException as error:
            return f"no broker answers at {self._kafka.bootstrap}: {error.args[0].str()}"
        return "" if brokers else f"the broker at {self._kafka.bootstrap} lists no brokers yet"
