"""Publish outputs and commit input offsets in one Kafka transaction: both take effect, or neither."""

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Offset

from stepstream.config import Settings
from stepstream.core.process import Fatal
from stepstream.core.tracing import HEADER
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.fetch import GroupMember
from stepstream.jobs.runtime.outputs import Output
from stepstream.jobs.runtime.record import TopicPartition
from stepstream.jobs.runtime.retry import Cancelled, retry_while
from stepstream.topics.access import denial
from stepstream.topics.client import client_config, consumer
from stepstream.topics.codec import Codec
from stepstream.topics.producer import DeliveryFailed, EventProducer

log = logging.getLogger(__name__)

_TIMEOUT_SHARE = 2 / 3
"""Longest transaction, as a share of the group's session timeout: a dead worker's open transaction ends before its
partitions have a new owner. Until then, it hides the later records of the partitions that it wrote to."""
_ATTEMPT_S = 2.0
_IDLE_S = 5.0
"""Pause after which the group's coordinator is asked before the next transaction."""
_WATCH_S = 1.0
_GRACE_S = 10.0
"""Longest wait for the outcome of a commit, or for any call of the client, after the work was cancelled."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 2.0

_REFUSED = (
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
)
_UNAVAILABLE = (
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)


class Refused(Exception):
    """The group does not accept offsets of this member: its partitions have, or will have, another owner."""


class TransactionalPublisher:
    """The one transactional producer of a worker. Use from one thread.

    A process that starts with the same id fences the older one and aborts its open transaction.
    """

    def __init__(
        self, settings: Settings, codec: Codec, source: str, transactional_id: str, cancelled: Callable[[], bool]
    ) -> None:
        """Connect lazily. `source` is `ce_source` of every event; waits end once `cancelled` returns True."""
        self._cancelled = cancelled
        self._id = transactional_id
        self._settings, self._codec, self._source = settings, codec, source
        self._connect()
        self._kafka = settings.kafka
        self._coordinator: Consumer | None = None
        self._committed_s = -_IDLE_S
        self._watchdog = _Watchdog(f"a transaction of '{transactional_id}'", settings.jobs.session_timeout_s, cancelled)

    def _connect(self) -> None:
        timeout_ms = int(self._settings.jobs.session_timeout_s * _TIMEOUT_SHARE * 1000)
        self._events = _TransactionalProducer(
            self._settings,
            self._codec,
            self._source,
            {
                "transactional.id": self._id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                # A transaction waits while the one before writes its markers, by default for 100 ms.
                "retry.backoff.ms": 2,
                "retry.backoff.max.ms": 100,
            },
        )
        self._producer = self._events.transactions
        self._is_initialized = False

    def settle(self, topic: str, member: GroupMember) -> None:
        """End what earlier transactions of the id left open, so that the group's offsets can be read; block until then.

        1. Initialize the producer: the broker aborts an open transaction.
        2. Abort a transaction with an offset of the group. A broker that was killed while it aborted may have lost the
           marker among the group's offsets. They would stay pending, and each read of them would wait for ever. The
           next marker of the producer ends them.

        Args:
            topic: an input topic of the group.
            member: the worker's membership in the group.

        Raises:
            Refused, Cancelled, DeliveryFailed, Fatal: as `commit`.
        """
        self._transact((), [Offset(topic, 0, 0)], member, self._abort)

    def initialize(self) -> None:
        """Fence older producers of the id and abort their open transaction; the first call blocks until then.

        Raises:
            Cancelled: the work was cancelled while waiting for a broker.
            Fatal: this producer is fenced.
        """
        if not self._is_initialized:
            self._repeat(lambda: self._producer.init_transactions(_ATTEMPT_S))
            self._is_initialized = True

    def commit(self, outputs: Sequence[Output], offsets: list[Offset], member: GroupMember) -> None:
        """Publish outputs and commit offsets together; block until both took effect, however long a broker is away.

        1. Begin a transaction and queue the outputs.
        2. Send the offsets, which the group's coordinator refuses for an older generation or another member.
        3. Commit. If a broker was unavailable, abort and begin again.

        Raises:
            Refused: the member may not commit; nothing took effect.
            Cancelled: the work was cancelled while a broker was unavailable; nothing took effect.
            DeliveryFailed: Kafka rejected an event permanently; nothing took effect.
            Fatal: a newer process has the same id, or the outcome is unknown: restart, which settles it.
        """
        self._transact(outputs, offsets, member, self._finish)
        for topic, records in Counter(output.topic for output in outputs).items():
            metrics.RECORDS_OUT.labels(topic).inc(records)

    def _transact(
        self, outputs: Sequence[Output], offsets: list[Offset], member: GroupMember, end: Callable[[], None]
    ) -> None:
        self.initialize()
        metadata = member.encode(self._kafka.prefix)
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                self._wait_for_coordinator(offsets[:1], member.group)
                self._producer.begin_transaction()
                self._send(outputs)
                self._repeat(lambda: self._producer.send_offsets_to_transaction(offsets, metadata, _ATTEMPT_S))
                end()
                break
            except Cancelled:
                self._abort()
                raise
            except KafkaException as error:
                self._recover(error)
            log.warning("retrying a transaction of %s", self._id)
            if self._cancelled():
                raise Cancelled
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        self._committed_s = time.monotonic()

    def _wait_for_coordinator(self, offsets: list[Offset], group: str) -> None:
        """Block until the group's coordinator answers, after a fault of the connection or a pause.

        `send_offsets_to_transaction` never returns if it finds no coordinator, as just after the start of a broker:
        librdkafka drops the request after two retries.

        Raises:
            Cancelled: the work was cancelled while waiting.
        """
        self._producer.poll(0)
        if not self._events.is_disconnected and time.monotonic() < self._committed_s + _IDLE_S:
            return
        if self._coordinator is None:
            # Committed reads would wait for pending offsets, which only the next transaction may end.
            config = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_uncommitted"}
            self._coordinator = consumer(self._kafka, config)
        asked = [Offset(one.topic, one.partition) for one in offsets]
        coordinator = self._coordinator
        retry_while(lambda: coordinator.committed(asked, timeout=_ATTEMPT_S), KafkaException, self._cancelled)
        if self._events.is_disconnected:
            # The call also hangs in a producer that knew the coordinator before the broker's restart.
            self._connect()
            self.initialize()

    def _send(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            while True:
                try:
                    headers = {HEADER: output.traceparent} if output.traceparent else None
                    self._events.send_stamped(
                        output.topic, output.key, output.value, output.event_id, output.occurred_at_us, headers
                    )
                    break
                except BufferError:
                    if not self._producer.poll(_ATTEMPT_S) and self._cancelled():
                        raise Cancelled from None

    def _finish(self) -> None:
        """Commit. Once begun, the commit may take effect at any time: wait for its outcome."""
        gives_up_s: float | None = None
        while True:
            try:
                with self._watchdog:
                    return self._producer.commit_transaction(_ATTEMPT_S)
            except KafkaException as error:
                if not _is_retriable(error):
                    raise
                now = time.monotonic()
                if gives_up_s is None and self._cancelled():
                    gives_up_s = now + _GRACE_S
                if gives_up_s is not None and now > gives_up_s:
                    raise Fatal(
                        f"stopped before the broker answered to the commit of '{self._id}': its outcome is unknown; "
                        "restart this process, which settles it"
                    ) from error

    def _recover(self, error: KafkaException) -> None:
        """Abort the transaction; return if it may be repeated.

        Raises:
            Refused, DeliveryFailed, Fatal: it may not.
        """
        fault: KafkaError = error.args[0]
        if not fault.txn_requires_abort():
            raise self._fatal(fault) from error
        self._abort()
        permanent = [text for code, text in self._events.rejected if code not in _UNAVAILABLE]
        self._events.rejected.clear()
        if fault.code() in _REFUSED:
            raise Refused(f"the group refused the offsets of this worker: {fault.str()}") from error
        if permanent or fault.code() not in _UNAVAILABLE:
            reason = permanent[0] if permanent else fault.str()
            raise DeliveryFailed(f"Kafka rejected a transaction of '{self._id}': {reason}") from error

    def _abort(self) -> None:
        try:
            self._repeat(lambda: self._producer.abort_transaction(_ATTEMPT_S), grace_s=_GRACE_S)
        except KafkaException as error:
            raise self._fatal(error.args[0]) from error
        except Cancelled as error:
            raise Fatal(f"stopped before the broker aborted the transaction of '{self._id}'") from error

    def _repeat(self, call: Callable[[], object], grace_s: float = 0.0) -> None:
        """Repeat a call until it succeeds.

        Raises:
            Cancelled: the work was cancelled, and then `grace_s` seconds passed.
            Fatal: this producer is fenced, or its user may not use its id.
            KafkaException: the transaction must be aborted.
        """
        gives_up_s: float | None = None
        while True:
            try:
                with self._watchdog:
                    call()
                return
            except KafkaException as error:
                fault: KafkaError = error.args[0]
                if refusal := denial(fault, self._settings.kafka, self._settings.kafka.prefix + self._id):
                    raise refusal from error
                if fault.fatal():
                    raise self._fatal(fault) from error
                if fault.txn_requires_abort() or not _is_retriable(error):
                    raise
                now = time.monotonic()
                if gives_up_s is None and self._cancelled():
                    gives_up_s = now + grace_s
                if gives_up_s is not None and now >= gives_up_s:
                    raise Cancelled from error
                time.sleep(_FIRST_WAIT_S)

    def _fatal(self, fault: KafkaError) -> Fatal:
        return Fatal(
            f"the transactional producer '{self._id}' cannot continue ({fault.str()}): a newer process has the same "
            "id, or the broker ended its transaction; restart this process"
        )


def committed_offsets(positions: Mapping[TopicPartition, int], metadata: Mapping[TopicPartition, str]) -> list[Offset]:
    """Return offsets to commit; `metadata` is text that the group keeps beside an offset."""
    return [
        Offset(topic, partition, offset, metadata=metadata.get((topic, partition), ""))
        for (topic, partition), offset in positions.items()
    ]


def _is_retriable(error: KafkaException) -> bool:
    fault: KafkaError = error.args[0]
    # A broker that has just started answers NOT_COORDINATOR for a moment.
    return not fault.fatal() and not fault.txn_requires_abort() and (fault.retriable() or fault.code() in _UNAVAILABLE)


class _TransactionalProducer(EventProducer):
    """Gives access to the transactions, and keeps the codes of rejected events."""

    rejected: list[tuple[int, str]]
    """Code and text of the events that Kafka rejected; the caller clears it."""
    is_disconnected = False
    """True if the client reported a fault; the caller clears it."""

    def __init__(self, settings: Settings, codec: Codec, source: str, config: Mapping[str, Any]) -> None:
        self.rejected = []
        report = client_config(settings.kafka)["error_cb"]

        def note(error: KafkaError) -> None:
            self.is_disconnected = True
            report(error)

        super().__init__(settings.kafka, codec, source, linger_ms=0.0, extra_config={**config, "error_cb": note})

    @property
    def transactions(self) -> Producer:
        """The client's producer."""
        return self._producer

    def _note_failure(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.rejected.append((error.code(), f"{message.topic()}: {error}"))


class _Watchdog:
    """Ends the process if a call of the client takes too long: its thread cannot be interrupted.

    Use it as a context manager around each call, from one thread. A restart settles the transaction. A call may take
    `timeout_s`; at most 10 s once `cancelled` is true.
    """

    def __init__(self, call: str, timeout_s: float, cancelled: Callable[[], bool]) -> None:
        self._call, self._timeout_s, self._cancelled = call, timeout_s, cancelled
        self._began_s: float | None = None
        self._cancelled_s: float | None = None
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def __enter__(self) -> None:
        self._began_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._began_s = None

    def _watch(self) -> None:
        late: float | None = None
        while True:
            time.sleep(_WATCH_S)
            if not self._cancelled():
                self._cancelled_s = None
            elif self._cancelled_s is None:
                self._cancelled_s = time.monotonic()
            began = self._began_s
            if began is None or time.monotonic() < self._end_s(began):
                continue
            if began == late:  # seen twice: a process that was stopped gets time to go on
                seconds = time.monotonic() - began
                log.critical("%s did not return within %.0f s: restarting this process", self._call, seconds)
                os._exit(1)
            late = began

    def _end_s(self, began_s: float) -> float:
        """Return the time at which a call takes too long."""
        end_s = began_s + self._timeout_s
        return end_s if self._cancelled_s is None else min(end_s, max(began_s, self._cancelled_s) + _GRACE_S)
