"""Read the decisions and control policies that all browsers share for a moment."""

import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaException

from stepstream.config import Settings
from stepstream.services.console.event_log import LogUnavailable
from stepstream.services.control.decision_log import read_decisions, read_table
from stepstream.services.control.decisions import Decisions
from stepstream.services.control.signatures import TrustedKeys, signing_key
from stepstream.topics.catalogue import CONTROL_POLICIES
from stepstream.topics.client import KafkaUnavailable
from stepstream.topics.codec import RegistryUnavailable
from stepstream.topics.events import ControlPolicy

T = TypeVar("T")

_FRESH_S = 2.0


class DecisionCache:
    """Reads the log at the first question, and again when the answer is older than 2 s. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        """Read the key that signs answers.

        Raises:
            SettingsError: `control.signing_key` or `control.trusted_keys` is wrong.
        """
        self._settings = settings
        self.signing_key = signing_key(settings.control)
        """Signs the answers of the console's users; None: they are not signed."""
        TrustedKeys(settings.control.trusted_keys)
        self._lock = threading.Lock()
        self._read_at = -math.inf
        self._answer: tuple[Decisions, list[ControlPolicy]] = (Decisions(), [])

    def get(self, *, fresh: bool = False) -> tuple[Decisions, list[ControlPolicy]]:
        """Return the newest decisions and the control policies. Blocks while the log is read.

        Args:
            fresh: read the log in any case.

        Raises:
            LogUnavailable: Kafka or the registry does not answer.
        """
        with self._lock:
            if fresh or time.monotonic() - self._read_at >= _FRESH_S:
                self._answer = reading_log(self._read)
                self._read_at = time.monotonic()
            return self._answer

    def expire(self) -> None:
        """Read the log again at the next question: a record was written."""
        with self._lock:
            self._read_at = -math.inf

    def _read(self) -> tuple[Decisions, list[ControlPolicy]]:
        policies = read_table(self._settings, CONTROL_POLICIES)
        return read_decisions(self._settings), list(policies.values())


def reading_log(read: Callable[[], T]) -> T:
    """Return the result of a function that reads the log.

    Raises:
        LogUnavailable: Kafka or the registry does not answer.
    """
    try:
        return read()
    except (KafkaUnavailable, KafkaException, RegistryUnavailable) as error:
        raise LogUnavailable(f"the decisions could not be read: {error}") from error
