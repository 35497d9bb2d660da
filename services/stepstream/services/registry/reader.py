"""Follows the schemas topic in a thread of its own and keeps the view of it."""

import logging
import os
import threading
import time
import uuid

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec
from prometheus_client import Counter, Gauge

from stepstream.config import KafkaSettings
from stepstream.services.registry.records import TOPIC, RecordError, decode
from stepstream.services.registry.view import Fold, View
from stepstream.topics.client import admin_client, client_config

log = logging.getLogger(__name__)

SKIPPED = Counter("stepstream_registry_records_skipped", "Records of the schemas topic that could not be read.")
SCHEMAS = Gauge("stepstream_registry_schemas", "Schemas with an id.")
OFFSET = Gauge("stepstream_registry_offset", "Offset up to which the schemas topic has been read.")


class Reader:
    """The newest view; only committed records are ever seen.

    `view` may be read from any thread: a view never changes, it is replaced.
    """

    def __init__(self, kafka: KafkaSettings) -> None:
        self.view: View = Fold().view()
        self._fold = Fold()
        self._kafka = kafka
        self._position = 0
        self._moved = threading.Condition()
        self._closing = False
        self._consumer = Consumer(
            client_config(kafka)
            | {
                # A group is only named because the client asks for one: nothing is committed, all of it is read.
                "group.id": f"stepstream-registry-{uuid.uuid4()}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                # How late the end of the log is noticed after somebody else's write.
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 100,
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
        # The consumer's own look at the end waits for its poll, and that for the next record.
        self._admin = admin_client(kafka)
        self._thread = threading.Thread(target=self._follow, name="schemas-reader", daemon=True)
        self._thread.start()

    def catch_up(self, timeout: float) -> bool:
        """Waits until all that was committed before this call has been read; False: not within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        end = self._end(deadline)
        return end is not None and self.wait_for(end, deadline - time.monotonic())

    def wait_for(self, offset: int, timeout: float) -> bool:
        """Waits until every record before `offset` is in the view; False: not within `timeout` seconds."""
        with self._moved:
            return self._moved.wait_for(lambda: self._position >= offset, max(0.0, timeout))

    def _end(self, deadline: float) -> int | None:
        """The offset after the last committed record; None: not told in time."""
        partition = TopicPartition(TOPIC, 0)
        while (left := deadline - time.monotonic()) > 0:
            admin = self._admin  # Its futures end with it, and another thread may put a new one here.
            asked = admin.list_offsets(
                {partition: OffsetSpec.latest()},  # type: ignore[no-untyped-call]
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=max(0.01, left),
            )
            try:
                return int(asked[partition].result().offset)
            except KafkaException as error:
                log.debug("asking for the end of topic %s: %s", TOPIC, error)
                # The client keeps the leader's epoch of before a broker's restart for minutes: a new one does not.
                self._admin = admin_client(self._kafka)
                time.sleep(0.02)
        return None

    def close(self) -> None:
        """Stops following."""
        self._closing = True
        self._thread.join()
        self._consumer.close()

    def _follow(self) -> None:
        try:
            self._follow_until_closed()
        except Exception:
            # Without its reader the service would answer from an old view for ever: end, be started again, replay.
            log.exception("reading topic %s failed", TOPIC)
            os._exit(1)

    def _follow_until_closed(self) -> None:
        while not self._closing:
            first = self._consumer.poll(0.2)
            if first is not None:
                # `consume` alone would wait for a full batch; what has come already makes a replay fast.
                self._take([first, *self._consumer.consume(499, timeout=0)])

    def _take(self, messages: list[Message]) -> None:
        position, changed = self._position, False
        for message in messages:
            offset = message.offset()
            error = message.error()
            if error is None:
                changed = self._apply(message) or changed
                position = max(position, (offset or 0) + 1)
            elif error.code() == KafkaError._PARTITION_EOF:
                position = max(position, offset or 0)
            else:
                log.warning("reading topic %s: %s", TOPIC, error.str())
        if changed:
            self.view = self._fold.view()
            SCHEMAS.set(len(self.view.schemas))
        if position != self._position:
            with self._moved:
                self._position = position
                OFFSET.set(position)
                self._moved.notify_all()

    def _apply(self, message: Message) -> bool:
        try:
            record = decode(message.key(), message.value())
        except RecordError as error:
            SKIPPED.inc()
            log.warning("topic %s offset %s is skipped: %s", TOPIC, message.offset(), error)
            return False
        if record is None:
            return False
        self._fold.apply(message.offset() or 0, *record)
        return True
