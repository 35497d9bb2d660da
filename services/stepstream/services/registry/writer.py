"""Appends decided writes to the schemas topic, one writer in the cluster at a time.

Every instance uses the same transactional id. To take the turn is to initialise transactions, which fences whoever had
it; a commit therefore succeeds only if nobody else has written since this instance last read to the end. A fenced
writer takes the turn back, reads what it missed and decides again. So ids and versions cannot collide, no losing record
reaches the log (compaction, which keeps the last record of a key, can never keep a loser), and what a request writes
appears whole or not at all.
"""

import logging
import random
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from prometheus_client import Counter

from stepstream.config import KafkaSettings
from stepstream.services.registry import errors
from stepstream.services.registry.reader import Reader
from stepstream.services.registry.records import TOPIC, encode
from stepstream.services.registry.view import View
from stepstream.services.registry.writes import Write
from stepstream.topics.client import client_config

log = logging.getLogger(__name__)

DECIDED_AGAIN = Counter(
    "stepstream_registry_write_retries", "Writes decided again, mostly because another instance wrote first."
)

REFRESH_S = 1.0
"""Longest wait, in seconds, to learn whether another instance has just written what this one does not know."""

_FENCED_CODES = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


class Writer:
    """Not thread-safe: its owner calls it for one request at a time."""

    def __init__(self, kafka: KafkaSettings, reader: Reader) -> None:
        self._config = client_config(kafka) | {
            "transactional.id": f"stepstream-registry-{TOPIC}",
            # A writer that was killed in a transaction hides later records for at most this long.
            "transaction.timeout.ms": 10_000,
            "linger.ms": 0,
        }
        self._reader = reader
        self._producer: Producer | None = None

    def write(self, decide: Callable[[View], Write], timeout: float) -> Any:
        """Decides on the newest view, appends, and answers once the records were read back.

        Raises:
            RegistryError: what `decide` raises; 50002 or 50003 when Kafka does not take it within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            producer = self._take_turn(deadline)
            view = self._reader.view
            try:
                write = decide(view)
            except errors.RegistryError:
                if self._is_newest(view, deadline):
                    raise
                continue
            if not write.records:
                if self._is_newest(view, deadline):
                    return write.answer
                continue
            try:
                end = self._append(producer, write, deadline)
            except KafkaException as error:
                self._producer = None
                fault: KafkaError = error.args[0]
                if fault.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    raise errors.invalid_schema("larger than the broker's message.max.bytes") from None
                log.warning("writing to topic %s: %s", TOPIC, fault.str())
                if not (fault.code() in _FENCED_CODES or fault.txn_requires_abort()):
                    raise errors.write_timed_out(timeout) from None
                DECIDED_AGAIN.inc()
                time.sleep(random.uniform(0.01, 0.1))
                continue
            if not self._reader.wait_for(end, _left(deadline)):
                raise errors.write_timed_out(timeout)
            return write.answer

    def _is_newest(self, view: View, deadline: float) -> bool:
        """Whether a decision that writes nothing, and so is checked by no commit, still stands.

        Without a broker the newest known view has to do.
        """
        self._reader.catch_up(min(REFRESH_S, _left(deadline)))
        return self._reader.view is view

    def _take_turn(self, deadline: float) -> Producer:
        fault = "no answer in time"
        while self._producer is None:
            if _left(deadline) <= 0:
                raise errors.log_unreachable(fault)
            producer = Producer(self._config)
            try:
                producer.init_transactions(_left(deadline))
            except KafkaException as error:
                # Also NOT_COORDINATOR, for a moment, on a broker that has just started.
                fault = error.args[0].str()
                time.sleep(0.1)
                continue
            if not self._reader.catch_up(_left(deadline)):
                raise errors.log_unreachable("its end was not reached in time")
            self._producer = producer
        return self._producer

    def _append(self, producer: Producer, write: Write, deadline: float) -> int:
        """The offset after the last record, which is committed."""
        offsets: list[int] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offsets.append(message.offset() or 0)

        producer.begin_transaction()
        for record in write.records:
            key, value = encode(*record)
            producer.produce(TOPIC, key=key, value=value, partition=0, on_delivery=delivered)
        while True:
            try:
                producer.commit_transaction(max(0.1, _left(deadline)))
            except KafkaException as error:
                fault: KafkaError = error.args[0]
                if fault.retriable() and _left(deadline) > 0:
                    continue
                raise
            return max(offsets) + 1


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
