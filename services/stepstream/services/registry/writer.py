"""Append writes to the schemas topic, with one writer in the cluster at a time.

Every instance uses the same transactional id. To write, an instance

1. becomes the writer (`init_transactions`, which fences the previous one);
2. reads the topic to its end;
3. decides on the newest view;
4. commits its decision as one transaction.

The commit succeeds only if no other instance has become the writer since step 1. A fenced writer starts again. So ids
and versions cannot collide, and the log contains no record of a lost race, which compaction could keep. A request's
records become visible together or not at all.
"""

import logging
import random
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from stepstream.config import KafkaSettings
from stepstream.core.metrics.services import REGISTRY_WRITE_RETRIES
from stepstream.services.registry import errors
from stepstream.services.registry.reader import Reader
from stepstream.services.registry.records import TOPIC, encode
from stepstream.services.registry.view import View
from stepstream.services.registry.writes import Write
from stepstream.topics.client import client_config

log = logging.getLogger(__name__)

WRITE_RETRIES = REGISTRY_WRITE_RETRIES.create()

REFRESH_S = 1.0
"""Limit in seconds of the wait for another instance's latest writes."""

_FENCED_CODES = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


class Writer:
    """Writes to the topic. Not thread-safe: call it for one request at a time."""

    def __init__(self, kafka: KafkaSettings, reader: Reader) -> None:
        self._config = client_config(kafka) | {
            "transactional.id": f"stepstream-registry-{TOPIC}",
            # A writer killed in a transaction hides later records for at most this long.
            "transaction.timeout.ms": 10_000,
            "linger.ms": 0,
        }
        self._reader = reader
        self._producer: Producer | None = None

    def write(self, decide: Callable[[View], Write], timeout: float) -> Any:
        """Decide on the newest view, append the records, and return the answer after they are read back.

        Raises:
            RegistryError: as `decide` raises; 50002 or 50003 if Kafka does not commit within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            producer = self._become_writer(deadline)
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
                log.warning("write to topic %s failed: %s", TOPIC, fault.str())
                if not (fault.code() in _FENCED_CODES or fault.txn_requires_abort()):
                    raise errors.write_timed_out(timeout) from None
                WRITE_RETRIES.inc()
                time.sleep(random.uniform(0.01, 0.1))
                continue
            if not self._reader.wait_for(end, _seconds_left(deadline)):
                raise errors.write_timed_out(timeout)
            return write.answer

    def _is_newest(self, view: View, deadline: float) -> bool:
        """Return True if a decision without records, which no commit checks, is still valid.

        Without a broker the newest known view counts.
        """
        self._reader.catch_up(min(REFRESH_S, _seconds_left(deadline)))
        return self._reader.view is view

    def _become_writer(self, deadline: float) -> Producer:
        fault = "no answer in time"
        while self._producer is None:
            if _seconds_left(deadline) <= 0:
                raise errors.log_unreachable(fault)
            producer = Producer(self._config)
            try:
                producer.init_transactions(_seconds_left(deadline))
            except KafkaException as error:
                # A broker that has just started answers NOT_COORDINATOR for a moment.
                fault = error.args[0].str()
                time.sleep(0.1)
                continue
            if not self._reader.catch_up(_seconds_left(deadline)):
                raise errors.log_unreachable("it was not read to its end in time")
            self._producer = producer
        return self._producer

    def _append(self, producer: Producer, write: Write, deadline: float) -> int:
        """Commit the records in one transaction; return the offset after the last one."""
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
                producer.commit_transaction(max(0.1, _seconds_left(deadline)))
            except KafkaException as error:
                fault: KafkaError = error.args[0]
                if fault.retriable() and _seconds_left(deadline) > 0:
                    continue
                raise
            return max(offsets) + 1


def _seconds_left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
