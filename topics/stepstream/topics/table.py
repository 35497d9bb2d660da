"""The newest record of each key of a compacted topic, kept current by a thread of its own.

For the small tables that every instance of a job or service needs whole: policies, consents, keys. With a snapshot
file, what was known at the last change is there at once after a restart, whether or not Kafka can be reached.
"""

import io
import logging
import os
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import fastavro
import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from stepstream.config import Settings
from stepstream.schemas import schema, schema_text
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.client import client_config
from stepstream.topics.closing import Closing
from stepstream.topics.codec import Codec, CodecError, RegistryUnavailable

log = logging.getLogger(__name__)

POLL_S = 0.1
RETRY_S = 0.5
CALL_S = 5.0
ASKED_AGAIN_S = 1.0

Changed = Callable[[str, Any], None]
Refused = Callable[[Any], str | None]
"""Why a record cannot be used; None: it can."""


class Table(Closing):
    """One followed table. Safe to read from any thread; close it, or use it as a context manager."""

    def __init__(
        self, settings: Settings, topic: str, *, snapshot: Path | None = None, refused: Refused | None = None
    ) -> None:
        """Begins to follow; returns at once.

        Args:
            settings: where Kafka and the registry are.
            topic: a compacted topic of the catalogue with one partition.
            snapshot: file to keep what is known in; it is read now and replaced at each change.
            refused: judges each record; one that cannot be used is passed over, and the one before it stays.
        """
        self._settings = settings
        self._topic = topic
        self._refused = refused
        self._snapshot = _Snapshot(snapshot, topic) if snapshot is not None else None
        self._rows: dict[str, Any] = self._snapshot.read() if self._snapshot is not None else {}
        self._seen: set[str] = set()
        self._current = False
        self._callbacks: list[Changed] = []
        self._waiting: list[_Wait] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"table-{topic}", daemon=True)
        self._thread.start()

    @property
    def current(self) -> bool:
        """Whether all that was in the topic at the start has been read; before that, only a snapshot is known."""
        return self._current

    def get(self, key: str) -> Any:
        """The newest record of a key, or None."""
        return self._rows.get(key)

    def items(self) -> dict[str, Any]:
        """All keys with their newest records, as a copy."""
        with self._lock:
            return dict(self._rows)

    def on_change(self, callback: Changed) -> None:
        """Calls `callback(key, record)` in the table's thread at each change from now on; None: the key is gone."""
        self._callbacks.append(callback)

    def wait_current(self, timeout_s: float) -> bool:
        """Blocks until all that is in the topic now has been read; False if that takes longer than `timeout_s`."""
        wait = _Wait()
        with self._lock:
            self._waiting.append(wait)
        return wait.done.wait(timeout_s)

    def wait_until_current(self, abandoned: Callable[[], bool]) -> bool:
        """Blocks until all that is in the topic now has been read; False: asked to give up before."""
        while not self.wait_current(ASKED_AGAIN_S):
            if abandoned():
                return False
        return True

    def close(self) -> None:
        """Stops following."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        codec = Codec(self._settings.schema_registry)
        try:
            told = False
            while not self._closing.is_set():
                try:
                    self._follow(codec)
                except KafkaException as error:
                    if not told:
                        log.warning("table %s waits for Kafka: %s", self._topic, error)
                        told = True
                    self._closing.wait(RETRY_S)
        finally:
            codec.close()

    def _follow(self, codec: Codec) -> None:
        """Reads from the beginning and then on, until closed or Kafka fails for good."""
        consumer = Consumer(
            client_config(self._settings.kafka)
            | {
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            }
        )
        try:
            self._seen.clear()
            _, end = consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=CALL_S)
            consumer.assign([TopicPartition(self._topic, 0, 0)])
            position = 0
            while not self._closing.is_set():
                changed = False
                for message in consumer.consume(1000, POLL_S):
                    position = max(position, _next_offset(message))
                    changed |= self._take(message, codec)
                if not self._current and position >= end:
                    changed |= self._forget_unseen()
                    self._current = True
                if changed and self._current and self._snapshot is not None:
                    self._snapshot.write(self.items())
                self._answer(consumer, position)
        finally:
            consumer.close()

    def _take(self, message: Message, codec: Codec) -> bool:
        """Takes in one message; False if it was no record."""
        if message.error() is not None:
            return False
        key = (message.key() or b"").decode(errors="replace")
        self._seen.add(key)
        if message.value() is None:
            self._set(key, None)
            return True
        while not self._closing.is_set():
            try:
                record = codec.decode(self._topic, message.value())
                fault = None if self._refused is None else self._refused(record)
                if fault is not None:
                    log.error("offset %s of %s is refused: %s", message.offset(), self._topic, fault)
                    return False
                self._set(key, record)
                break
            except CodecError as error:
                log.error("offset %s of %s cannot be read and is passed over: %s", message.offset(), self._topic, error)
                return False
            except RegistryUnavailable as error:
                log.warning("table %s waits for the schema registry: %s", self._topic, error)
                self._closing.wait(RETRY_S)
        return True

    def _set(self, key: str, record: Any) -> None:
        with self._lock:
            if record is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = record
        for callback in list(self._callbacks):
            callback(key, record)

    def _forget_unseen(self) -> bool:
        """Drops what only the snapshot knew: it has been deleted since."""
        gone = [key for key in self._rows if key not in self._seen]
        for key in gone:
            self._set(key, None)
        return bool(gone)

    def _answer(self, consumer: Consumer, position: int) -> None:
        """Wakes those who waited for what has been read by now."""
        with self._lock:
            waiting = list(self._waiting)
        new = [wait for wait in waiting if wait.until < 0]
        if new:
            _, end = consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=CALL_S)
            for wait in new:
                wait.until = end
        for wait in waiting:
            if self._current and position >= wait.until:
                wait.done.set()
                with self._lock:
                    self._waiting.remove(wait)


class _Wait:
    """Somebody who waits for the table to be current."""

    def __init__(self) -> None:
        self.until = -1
        """Offset to be reached; -1: not known yet."""
        self.done = threading.Event()


class _Snapshot:
    """The file of a table: readable only by the program's user, since it may hold wrapped keys."""

    def __init__(self, path: Path, topic: str) -> None:
        self._path = path
        self._schema = fastavro.parse_schema(schema(TOPICS[topic].schema))
        self._fingerprint = sha256(schema_text(TOPICS[topic].schema).encode()).hexdigest()

    def read(self) -> dict[str, Any]:
        """What it holds; nothing where there is none, or one of another schema."""
        try:
            stored = orjson.loads(self._path.read_bytes())
            if stored["schema"] != self._fingerprint:
                return {}
            return {
                key: fastavro.schemaless_reader(io.BytesIO(b64decode(value)), self._schema, None)
                for key, value in stored["rows"].items()
            }
        except FileNotFoundError:
            return {}
        except Exception as error:  # a damaged file is as good as none: the log is the truth
            log.warning("%s cannot be read and is not used: %r", self._path, error)
            return {}

    def write(self, rows: dict[str, Any]) -> None:
        """Replaces what it holds, at once or not at all."""
        encoded = {}
        for key, record in rows.items():
            out = io.BytesIO()
            fastavro.schemaless_writer(out, self._schema, record)
            encoded[key] = b64encode(out.getvalue()).decode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_suffix(f".{os.getpid()}.{time.monotonic_ns()}")
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(orjson.dumps({"schema": self._fingerprint, "rows": encoded}))
            temporary.replace(self._path)
        except OSError as error:
            log.warning("%s cannot be written, so it is missing after a restart without Kafka: %s", self._path, error)


def _next_offset(message: Message) -> int:
    """Where reading goes on after a message.

    Raises:
        KafkaException: a fault that does not mend itself.
    """
    fault = message.error()
    offset = message.offset()
    if fault is None:
        return (0 if offset is None else offset) + 1
    if fault.code() == KafkaError._PARTITION_EOF:
        return 0 if offset is None else offset
    if fault.retriable() or fault.code() == KafkaError._ALL_BROKERS_DOWN:
        return 0
    raise KafkaException(fault)
