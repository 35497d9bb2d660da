"""Follow the schemas topic on a separate thread, and keep the newest view of it."""

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

from stepstream.config import KafkaSettings
from stepstream.core.metrics.services import REGISTRY_OFFSET, REGISTRY_SCHEMAS, REGISTRY_SKIPPED
from stepstream.services.registry.records import TOPIC, RecordError, decode
from stepstream.services.registry.view import Fold, View
from stepstream.topics.client import admin_client, client_config

log = logging.getLogger(__name__)

SKIPPED = REGISTRY_SKIPPED.create()
SCHEMAS = REGISTRY_SCHEMAS.create()
OFFSET = REGISTRY_OFFSET.create()


class Reader:
    """Keeps the newest view; reads only committed records.

    Any thread may read `view`: each change replaces it with a new immutable one.
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
                # The client requires a group; this reader commits nothing and reads everything.
                "group.id": f"stepstream-registry-{uuid.uuid4()}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                # Limits the delay of noticing the log's end after another instance's write.
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 100,
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
        # Asks for the log's end, because the consumer's own query would wait for its poll.
        self._admin = admin_client(kafka)
        self._thread = threading.Thread(target=self._follow, name="schemas-reader", daemon=True)
        self._thread.start()

    def catch_up(self, timeout: float) -> bool:
        """Block until all records committed before this call are read; return False after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        end = self._end(deadline)
        return end is not None and self.wait_for(end, deadline - time.monotonic())

    def wait_for(self, offset: int, timeout: float) -> bool:
        """Block until every record before `offset` is in the view; return False after `timeout` seconds."""
        with self._moved:
            return self._moved.wait_for(lambda: self._position >= offset, max(0.0, timeout))

    def _end(self, deadline: float) -> int | None:
        """Return the offset after the last committed record; None: no answer before `deadline`."""
        partition = TopicPartition(TOPIC, 0)
        while (left := deadline - time.monotonic()) > 0:
            admin = self._admin  # keep a reference: its futures end with it, and another thread may replace it
            offsets = admin.list_offsets(
                {partition: OffsetSpec.latest()},  # type: ignore[no-untyped-call]
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=max(0.01, left),
            )
            try:
                return int(offsets[partition].result().offset)
            except KafkaException as error:
                log.debug("asking for the end of topic %s: %s", TOPIC, error)
                # After a broker's restart the client keeps the old leader epoch for minutes; a new client does not.
                self._admin = admin_client(self._kafka)
                time.sleep(0.02)
        return None

    def close(self) -> None:
        """End the thread; blocks until it has ended."""
        self._closing = True
        self._thread.join()
        self._consumer.close()

    def _follow(self) -> None:
        try:
            self._follow_until_closed()
        except Exception:
            # Without its reader the service would answer from an old view forever: exit, so that a restart replays.
            log.exception("reading topic %s failed; exiting for a restart", TOPIC)
            os._exit(1)

    def _follow_until_closed(self) -> None:
        while not self._closing:
            first = self._consumer.poll(0.2)
            if first is not None:
                # `consume` alone would wait for a full batch; taking the fetched records makes a replay fast.
                self._process([first, *self._consumer.consume(499, timeout=0)])

    def _process(self, messages: list[Message]) -> None:
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
            log.warning("skipped topic %s offset %s: %s", TOPIC, message.offset(), error)
            return False
        if record is None:
            return False
        self._fold.apply(message.offset() or 0, *record)
        return True
