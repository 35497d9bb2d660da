"""Follow a compacted topic in a thread, and hold the newest record of each key in memory.

It serves the small tables that every instance of a job or service needs completely: policies, consents, keys. With a
snapshot file, the last known records are available right after a restart, even without Kafka.

No record ends the thread. While a table cannot follow its topic, or the newest record of a key cannot be read, `fault`
names the reason, the log has it, and `stepstream_table_faulty` is 1. A caller that must not act on old rows checks it.
An unreachable Kafka is no fault of a table: then nothing new can be on the topic that others act on.
"""

import io
import logging
import os
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from typing import Any

import fastavro
import orjson
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec

from stepstream.config import Settings
from stepstream.schemas import schema, schema_text
from stepstream.topics import client
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.codec import Codec, CodecError, RegistryUnavailable

log = logging.getLogger(__name__)

_POLL_S = 0.5
"""Longest delay of `close` and of `wait_current`; a record ends a wait at once."""
_BATCH = 1000
_RETRY_S = 0.5
_CALL_S = 5.0
_WAIT_S = 1.0
_STALL_S = 20.0
"""Time without progress towards a record that somebody waits for, after which a new consumer reads."""
_FETCH_WAIT_MS = 2000
"""Longest time for which the broker holds a fetch without records; it answers at once when there is one.

A process follows up to ten tables, and each fetch costs the broker a millisecond of CPU.
"""

OnChange = Callable[[str, Any], None]
RejectionOf = Callable[[Any], str | None]
"""Returns the reason to reject a record; None: the record is valid."""


class Table(AbstractContextManager["Table"]):
    """One followed topic. Any thread may read it; close it, or use it as a context manager."""

    def __init__(
        self,
        settings: Settings,
        topic: str,
        *,
        snapshot: Path | None = None,
        rejection_of: RejectionOf | None = None,
        on_change: OnChange | None = None,
    ) -> None:
        """Start to follow the topic; return at once.

        Args:
            settings: connections to Kafka and the registry.
            topic: a compacted topic of the catalogue with one partition.
            snapshot: file of the known records; it is read now and replaced at each change.
            rejection_of: returns the reason to reject a record, so that its key keeps the record before; None: accept.
            on_change: as the method `on_change`, from the first record on.
        """
        self._settings = settings
        self._topic = topic
        self._rejection_of = rejection_of
        self._snapshot = _Snapshot(snapshot, topic) if snapshot is not None else None
        self._rows: dict[str, Any] = self._snapshot.read() if self._snapshot is not None else {}
        self._written_us: dict[str, int | None] = {}
        self._seen: set[str] = set()
        self._current = False
        self._unreadable: dict[str, str] = {}
        """Reason, by key, why the newest record of the key cannot be read; its row is older."""
        self._waits_for: str | None = None
        """Fault that keeps the thread from following; None: there is none."""
        self._callbacks: list[OnChange] = [] if on_change is None else [on_change]
        self._waiters: list[_Waiter] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"table-{topic}", daemon=True)
        self._thread.start()

    @property
    def current(self) -> bool:
        """True if all records from before the start have been read. Before that, only the snapshot is known."""
        return self._current

    @property
    def fault(self) -> str | None:
        """Return the reason why rows may be older than the topic; None: they are not."""
        if self._waits_for is None and not self._unreadable:
            return None
        reasons = [self._waits_for] if self._waits_for else list(self._unreadable.values())
        return f"table {self._topic}: {reasons[0]}"

    def get(self, key: str) -> Any:
        """Return the newest record of a key; None: the key is absent."""
        return self._rows.get(key)

    def items(self) -> dict[str, Any]:
        """Return a copy of all keys with their newest records."""
        with self._lock:
            return dict(self._rows)

    def written_us(self, key: str) -> int | None:
        """Return the time at which the broker wrote a key's newest record, as `append_time_us` does."""
        return self._written_us.get(key)

    def on_change(self, callback: OnChange) -> None:
        """Call `callback(key, record)` in the table's thread at each later change; None: the key was deleted."""
        self._callbacks.append(callback)

    def wait_current(self, timeout_s: float) -> bool:
        """Block until every present record of the topic has been read; return False after `timeout_s` seconds."""
        return wait_all_current([self], timeout_s)

    def wait_until_current(self, cancelled: Callable[[], bool]) -> bool:
        """Block until every present record has been read; return False if `cancelled` becomes true first."""
        while not self.wait_current(_WAIT_S):
            if cancelled():
                return False
        return True

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread."""
        close_all([self])

    def _add_waiter(self) -> "_Waiter":
        waiter = _Waiter()
        with self._lock:
            self._waiters.append(waiter)
        return waiter

    def _run(self) -> None:
        codec = Codec(self._settings)
        try:
            is_logged = False
            while not self._closing.is_set():
                try:
                    self._follow(codec)
                except _Stalled as stalled:
                    log.warning("table %s: %s", self._topic, stalled)
                except KafkaException as error:
                    if not is_logged:
                        log.warning("table %s waits for Kafka: %s", self._topic, error)
                        is_logged = True
                    self._closing.wait(_RETRY_S)
                except Exception as error:  # of a callback: read again from the beginning, which repeats its call
                    self._current = False
                    self._set_fault(f"it cannot follow its topic: {error!r}")
                    self._closing.wait(_RETRY_S)
        finally:
            codec.close()

    def _follow(self, codec: Codec) -> None:
        """Read from the beginning and follow, until closed or until a permanent error of Kafka.

        Raises:
            _Stalled: the consumer makes no progress.
        """
        consumer = client.consumer(
            self._settings.kafka,
            {
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": _FETCH_WAIT_MS,
            },
        )
        try:
            self._seen.clear()
            self._unreadable.clear()
            with self._lock:
                new = [waiter for waiter in self._waiters if waiter.end < 0]
            _, end = consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=_CALL_S)
            for waiter in new:
                waiter.end = end
            consumer.assign([TopicPartition(self._topic, 0, 0)])
            position, moved_s = 0, time.monotonic()
            while not self._closing.is_set():
                changed, before = False, position
                for message in _messages(consumer):
                    position = max(position, _next_offset(message))
                    changed |= self._apply(message, codec)
                if not self._current and position >= end:
                    changed |= self._delete_unseen()
                    self._current = True
                    self._set_fault(None)
                if changed and self._current and self._snapshot is not None:
                    self._snapshot.write(self.items())
                if self._wake_waiters(position) <= position or position > before:
                    moved_s = time.monotonic()
                elif time.monotonic() > moved_s + _STALL_S:
                    raise _Stalled(f"its consumer gets no record from offset {position} on: a new one begins")
        finally:
            consumer.close()

    def _apply(self, message: Message, codec: Codec) -> bool:
        """Apply one message; return False if it is no valid record."""
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
                reason = None if self._rejection_of is None else self._rejection_of(record)
                if reason is not None:
                    log.error("rejected offset %s of %s: %s", message.offset(), self._topic, reason)
                    return False
                self._written_us[key] = client.append_time_us(message)
                self._set(key, record)
                break
            except RegistryUnavailable as error:
                self._set_fault(f"it waits for the schema registry: {error}")
                self._closing.wait(_RETRY_S)
            except CodecError as error:
                log.error("skipped offset %s of %s, which cannot be read: %s", message.offset(), self._topic, error)
                self._unreadable[key] = f"offset {message.offset()} cannot be read: {error}; write the key again"
                self._report_fault()
                return False
        if self._current:
            self._set_fault(None)
        return True

    def _set_fault(self, fault: str | None) -> None:
        """Note, log and count a fault of the thread; None: it follows again."""
        if fault == self._waits_for:
            return
        if fault is not None:
            log.error("table %s: %s", self._topic, fault)
        elif self._waits_for is not None:
            log.info("table %s follows its topic again", self._topic)
        self._waits_for = fault
        self._report_fault()

    def _report_fault(self) -> None:
        from stepstream.topics.table_metrics import FAULTY  # agents import this module and serve no metrics

        FAULTY.labels(self._topic).set(self.fault is not None)

    def _set(self, key: str, record: Any) -> None:
        if self._unreadable.pop(key, None) is not None:
            self._report_fault()
        with self._lock:
            if record is None:
                self._rows.pop(key, None)
                self._written_us.pop(key, None)
            else:
                self._rows[key] = record
        for callback in list(self._callbacks):
            callback(key, record)

    def _delete_unseen(self) -> bool:
        """Delete the keys that only the snapshot had: they were deleted since. Return True if there were any."""
        deleted = [key for key in self._rows if key not in self._seen]
        for key in deleted:
            self._set(key, None)
        return bool(deleted)

    def _wake_waiters(self, position: int) -> int:
        """Wake the callers of `wait_current` whose offset has been reached; return the highest one waited for."""
        with self._lock:
            waiters = list(self._waiters)
        new = [waiter for waiter in waiters if waiter.end < 0]
        if new:
            end = self._end()
            for waiter in new:
                waiter.end = end
        for waiter in waiters:
            if self._current and position >= waiter.end:
                waiter.done.set()
                with self._lock:
                    self._waiters.remove(waiter)
        return max((waiter.end for waiter in waiters), default=0)

    def _end(self) -> int:
        """Ask for the topic's end over a connection of its own: on the consumer's, a fetch may wait for seconds."""
        partition = TopicPartition(self._topic, 0)
        admin = client.admin_client(self._settings.kafka)  # a new one knows the partition's leader, after a restart too
        futures = admin.list_offsets(
            {partition: OffsetSpec.latest()},  # type: ignore[no-untyped-call]
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=_CALL_S,
        )
        return int(futures[partition].result().offset)


def wait_all_current(tables: Iterable[Table], timeout_s: float) -> bool:
    """Block until every present record of all the tables has been read; return False after `timeout_s` seconds."""
    until = time.monotonic() + timeout_s
    waiters = [table._add_waiter() for table in tables]
    return all(waiter.done.wait(max(0.0, until - time.monotonic())) for waiter in waiters)


def close_all(tables: Sequence[Table]) -> None:
    """Stop the threads of tables; they end at the same time."""
    for table in tables:
        table._closing.set()
    for table in tables:
        table._thread.join()


def _messages(consumer: Consumer) -> list[Message]:
    """Return what was fetched; wait for the first message. `consume` alone would wait for a full batch."""
    first = consumer.poll(_POLL_S)
    return [] if first is None else [first, *consumer.consume(_BATCH, 0)]


class _Stalled(Exception):
    """The consumer gets no records, although there are some."""


class _Waiter:
    """One blocked call of `wait_current`."""

    def __init__(self) -> None:
        self.end = -1
        """Offset to reach; -1: not known yet."""
        self.done = threading.Event()


class _Snapshot:
    """The file of a table. Only the program's user may read it: it can hold wrapped keys."""

    def __init__(self, path: Path, topic: str) -> None:
        self._path = path
        self._schema = fastavro.parse_schema(schema(TOPICS[topic].schema))
        self._fingerprint = sha256(schema_text(TOPICS[topic].schema).encode()).hexdigest()

    def read(self) -> dict[str, Any]:
        """Return its records; none if the file is missing, damaged, or of another schema."""
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
        except Exception as error:  # a damaged file counts as missing: the log is the truth
            log.warning("ignored the snapshot %s, which cannot be read: %r", self._path, error)
            return {}

    def write(self, rows: dict[str, Any]) -> None:
        """Replace the file atomically."""
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
            log.warning("cannot write %s, needed after a restart without Kafka: %s; check the disk", self._path, error)


def _next_offset(message: Message) -> int:
    """Return the offset at which reading continues after a message.

    Raises:
        KafkaException: a permanent error.
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
