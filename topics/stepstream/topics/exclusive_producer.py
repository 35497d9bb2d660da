"""Publish events as the only owner of a name: a newer producer of the same name fences the older one."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from stepstream.config import KafkaSettings
from stepstream.topics.access import denial
from stepstream.topics.codec import Codec
from stepstream.topics.producer import DeliveryFailed, EventProducer

_FENCED_CODES = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_ATTEMPT_S = 2.0
_GRACE_S = 5.0


class Fenced(Exception):
    """A newer producer has the same transactional id: nothing that this one sends takes effect."""


class ExclusiveProducer(EventProducer):
    """Sends events in transactions: those between two flushes take effect together, or not at all.

    A transaction begins with its first event and blocks readers of the topic until `flush`, so flush at once.
    """

    def __init__(
        self, kafka: KafkaSettings, codec: Codec, source: str, transactional_id: str, cancelled: Callable[[], bool]
    ) -> None:
        """Connect lazily. Waits end once `cancelled` returns True."""
        self._kafka, self._transactional_id, self._cancelled = kafka, transactional_id, cancelled
        self._is_open = False
        super().__init__(
            kafka,
            codec,
            source,
            linger_ms=0,
            extra_config={
                "transactional.id": transactional_id,
                # A process killed in a transaction hides later events for at most this long.
                "transaction.timeout.ms": 10_000,
                "message.timeout.ms": 10_000,
            },
        )

    def take_over(self) -> None:
        """Fence every older producer of the id and abort its open transaction; block until then.

        Raises:
            DeliveryFailed: cancelled first.
            AccessDenied: the user may not use the id.
        """
        fault = ""
        while not self._cancelled():
            try:
                return self._producer.init_transactions(_ATTEMPT_S)
            except KafkaException as error:
                if refusal := denial(error.args[0], self._kafka, self._kafka.prefix + self._transactional_id):
                    raise refusal from error
                # A broker that has just started answers NOT_COORDINATOR for a moment.
                fault = error.args[0].str()
                time.sleep(0.1)
        raise DeliveryFailed(f"stopped before the broker accepted '{self._transactional_id}': {fault}")

    def send(self, topic: str, key: str, record: Any, **options: Any) -> None:
        """Queue one record in the open transaction, or in a new one; see `EventProducer.send`.

        Raises:
            Fenced: a newer producer took over.
        """
        if not self._is_open:
            self._checked(self._producer.begin_transaction)
            self._is_open = True
        self._checked(partial(super().send, topic, key, record, **options))

    def poll(self, timeout_s: float = 0.0) -> int:
        """Serve the broker's answers; see `EventProducer.poll`.

        Raises:
            Fenced: a newer producer took over.
        """
        self._checked(partial(super().poll, timeout_s))
        return 0

    def flush(self, timeout_s: float | None = None) -> None:
        """Commit what was sent; block until it is durable.

        Raises:
            Fenced: a newer producer took over; nothing took effect.
            DeliveryFailed: Kafka rejected an event, or the wait was cancelled or longer than `timeout_s`.
        """
        if not self._is_open:
            return
        ends_s = time.monotonic() + timeout_s if timeout_s is not None else None
        while not self._checked(lambda: self._producer.commit_transaction(_ATTEMPT_S)):
            if self._cancelled() and ends_s is None:
                ends_s = time.monotonic() + _GRACE_S
            if ends_s is not None and time.monotonic() > ends_s:
                raise DeliveryFailed(f"stopped before the broker committed the events of '{self._transactional_id}'")
        self._is_open = False

    def _checked(self, call: Callable[[], object]) -> bool:
        """Return True if the call succeeded, False if it may be repeated."""
        try:
            call()
        except KafkaException as error:
            fault: KafkaError = error.args[0]
            if fault.code() in _FENCED_CODES:
                raise Fenced(f"a newer producer took over '{self._transactional_id}'") from None
            if fault.retriable():
                return False
            if fault.txn_requires_abort():
                self._abort()
            raise DeliveryFailed(f"the transaction of '{self._transactional_id}' failed: {fault.str()}") from error
        return True

    def _abort(self) -> None:
        self._is_open = False
        try:
            self._producer.abort_transaction(_ATTEMPT_S)
        except KafkaException as error:
            if error.args[0].code() in _FENCED_CODES:
                raise Fenced(f"a newer producer took over '{self._transactional_id}'") from None
