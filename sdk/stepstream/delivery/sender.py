"""Send encoded events through Kafka's client and classify each result: delivered, to be sent again, or rejected.

`KafkaSender` encodes and sends. `SchemaHeaders` adds the registry's five-byte header to each body. `InFlightWindow`
holds the sent events, in order, until Kafka answers.
"""

import hashlib
import io
import json
import logging
import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import fastavro
from confluent_kafka import KafkaError, KafkaException, Message

from stepstream.config import KafkaSettings
from stepstream.delivery.types import DeliveryObserver, Event, SpoolPosition, SpoolRecord
from stepstream.schemas import schema_text
from stepstream.topics.catalogue import DEAD_LETTERS, TOPICS
from stepstream.topics.codec import Codec, CodecError, NotRegistered, Oversized, RegistryUnavailable
from stepstream.topics.events import DeadLetter, new_dead_letter
from stepstream.topics.ids import derived_id, now_us
from stepstream.topics.producer import EventProducer

log = logging.getLogger(__name__)

WINDOW_EVENTS = 20_000
WINDOW_BYTES = 32 * 1024 * 1024
WARN_INTERVAL_S = 10.0
IN_FLIGHT, DONE, FAILED = range(3)
"""States of an event in the window: unanswered; delivered or rejected; to be sent again."""
_PERMANENT = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
    }
)
"""Errors of the event itself. After any other error the event is sent again."""


class InFlightEvent:
    """An event that Kafka's client has. `record` is set only for an event that is not on disk."""

    __slots__ = ("key", "position", "record", "size", "state")

    def __init__(self, key: str, record: SpoolRecord | None, position: SpoolPosition | None, size: int) -> None:
        self.key = key
        self.record = record
        self.position = position
        self.size = size
        self.state = IN_FLIGHT


class InFlightWindow:
    """The sent events in order. The owner's lock guards it; the client's thread may change an event's state."""

    def __init__(self) -> None:
        self._events: deque[InFlightEvent] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    def has_room(self, size: int) -> bool:
        """Return True if one more event of `size` bytes fits. A single larger event fits into an empty window."""
        return len(self._events) < WINDOW_EVENTS and self._bytes + size <= max(WINDOW_BYTES, size)

    def add(self, event: InFlightEvent) -> None:
        """Append the event that was sent last."""
        self._events.append(event)
        self._bytes += event.size

    def pop_done(self) -> SpoolPosition | None:
        """Remove the finished events at the front; return the last position on disk among them."""
        position = None
        while self._events and self._events[0].state == DONE:
            event = self._events.popleft()
            self._bytes -= event.size
            position = event.position or position
        return position

    def is_answered(self) -> bool:
        """Return True if Kafka answered every event."""
        return all(event.state != IN_FLIGHT for event in self._events)

    def undelivered_positions(self) -> list[SpoolPosition | None]:
        """Return the positions of all unfinished events; None for one in memory."""
        return [event.position for event in self._events if event.state != DONE]

    def events_to_resend(self) -> list[tuple[SpoolRecord | None, SpoolPosition | None]]:
        """Return the events to send again so that each key keeps its order.

        These are all events on disk, and those in memory from the first failure of their key on. Events that arrive
        twice have the same id.
        """
        failed_keys: set[str] = set()
        events = []
        for event in self._events:
            if event.state == FAILED:
                failed_keys.add(event.key)
            if event.position is not None or event.key in failed_keys:
                events.append((event.record, event.position))
        return events

    def clear(self) -> None:
        """Remove all events."""
        self._events.clear()
        self._bytes = 0


class SchemaHeaders:
    """The five-byte headers that the schema registry assigned, by topic and schema.

    A spooled body may have an older schema than this package's, and is whole, however large. `look_up` and
    `to_sendable` block and belong to one thread; the others never block.
    """

    def __init__(self, codec: Codec) -> None:
        self.schemas = {topic.name: schema_text(topic.schema) for topic in TOPICS.values()}
        """Text of this package's schema, by topic."""
        self._codec = codec
        self._headers: dict[tuple[str, str], bytes] = {}
        self._unregistered: set[tuple[str, str]] = set()
        self._is_unavailable = False

    def wire_value(self, record: SpoolRecord) -> bytes | None:
        """Return the record's value on the wire; None before `look_up`, or if `to_sendable` must change it."""
        header = self._headers.get((record.topic, record.schema))
        return None if header is None or self._codec.is_large(record.topic, record.body) else header + record.body

    def tenant_of(self, topic: str, value: bytes) -> str | None:
        """Return the tenant in a record's value on the wire; None: unknown."""
        for (name, schema), header in list(self._headers.items()):  # the client's thread asks, another adds
            if name == topic and value.startswith(header):
                return tenant_of(schema, value[len(header) :])
        return None

    def look_up(self, records: Iterable[SpoolRecord]) -> bool:
        """Ask the registry for the missing headers of these records; False: the registry is unavailable.

        A schema may be unregistered if the registry was down while a program used it. Its records need `to_sendable`.
        """
        needed = {(record.topic, record.schema) for record in records}
        for topic, schema in needed - self._headers.keys() - self._unregistered:
            is_current = schema == self.schemas[topic]
            try:
                try:
                    self._headers[topic, schema] = self._codec.header(topic, None if is_current else schema)
                except NotRegistered:
                    if is_current:
                        raise
                    self._headers[topic, self.schemas[topic]] = self._codec.header(topic)
                    self._unregistered.add((topic, schema))
            except RegistryUnavailable as error:
                if not self._is_unavailable:
                    log.warning("events wait in the backlog: %s", error)
                    self._is_unavailable = True
                return False
        if self._is_unavailable:
            log.info("the schema registry is available again: sending the backlog")
            self._is_unavailable = False
        return True

    def to_sendable(self, record: SpoolRecord) -> SpoolRecord:
        """Translate a record of an unregistered schema to this package's; move large content to the store.

        Others are returned unchanged. Blocks for a person's key, or the store.

        Raises:
            CodecError: the body is invalid.
            KeysUnavailable: the body is sealed, and its key is unavailable now.
            ContentUnavailable: the store does not answer now.
        """
        topic, schema, body = record.topic, record.schema, record.body
        current = self.schemas[topic]
        if (topic, schema) in self._unregistered or (schema != current and self._codec.is_large(topic, body)):
            schema, body = current, self._codec.translate(topic, schema, body)
        body = self._codec.move_out(topic, body)
        return record if body is record.body else record._replace(schema=schema, body=body)


class KafkaSender:
    """One connection to Kafka. Call `send` with the owner's lock, `to_sendable` without it."""

    def __init__(
        self, kafka: KafkaSettings, codec: Codec, source: str, observer: DeliveryObserver, linger_ms: float
    ) -> None:
        """Connect lazily. The arguments are those of `SpooledProducer`."""
        self._connect = partial(EventProducer, kafka, codec, source, linger_ms=linger_ms)
        self.producer = self._connect()
        self.headers = SchemaHeaders(codec)
        self._codec = codec
        self.dead_letters: deque[DeadLetter] = deque()
        """Dead letters to send, for events that Kafka rejected."""
        self.has_failed = False
        """True after an event failed with a temporary error: send nothing more before `recover`."""
        self.acknowledged = 0
        """Acknowledged events since the owner last reset it."""
        self._source = source
        self._observer = observer
        self._is_fatal = False
        self._warned_at = -WARN_INTERVAL_S

    def encode(self, event: Event) -> SpoolRecord | None:
        """Encode an event for the backlog; None: it does not fit its schema and is rejected."""
        topic, key, record, headers = event
        event_id = record["event_id"]
        try:
            body = self._codec.body(topic, record)
        except (CodecError, RegistryUnavailable) as error:
            self.reject(topic, event_id, str(error))
            return None
        return SpoolRecord(topic, key, event_id, record["occurred_at_us"], headers, self.headers.schemas[topic], body)

    def send(self, record: SpoolRecord, sent: InFlightEvent) -> bool:
        """Give one event to the client; False: try again later. Never blocks, never raises."""
        envelope = {"event_id": record.event_id, "occurred_at_us": record.occurred_at_us}
        try:
            value = self.headers.wire_value(record)
            if value is None:
                return False
            self.producer.send_encoded(
                record.topic, record.key, value, envelope, record.headers, partial(self._on_report, sent)
            )
        except BufferError:
            return False
        except KafkaException as error:
            key = record.key.encode(errors="replace")
            self._handle_error(sent, error.args[0], record.topic, key, record.event_id, value or record.body)
        except Exception as error:  # an invalid event must not stop the caller's work
            self.reject(record.topic, record.event_id, str(error))
            sent.state = DONE
        return True

    def to_sendable(self, record: SpoolRecord) -> SpoolRecord | None:
        """Do as `SchemaHeaders.to_sendable`; None: its body is invalid and it is rejected.

        Raises:
            RegistryUnavailable: a key, or the store of large content, is unavailable now.
        """
        try:
            return self.headers.to_sendable(record)
        except RegistryUnavailable:
            raise
        except Oversized as error:
            key = record.key.encode(errors="replace")
            tenant = tenant_of(record.schema, record.body)
            self._give_up(record.topic, key, record.event_id, record.body, error.kind, str(error), tenant)
            return None
        except Exception as error:  # an invalid record must not block the records behind it
            self.reject(record.topic, record.event_id, str(error))
            return None

    def recover(self) -> None:
        """Allow sending after a failure; reconnect after a fatal error."""
        self.has_failed = False
        if self._is_fatal:
            self.producer = self._connect()
            self._is_fatal = False

    def reject(self, topic: str, event_id: str, reason: str) -> None:
        """Count and log an event that can never be published."""
        self._observer.on_rejected(1)
        log.error("rejected event %s for %s: %s", event_id, topic, reason)

    def warn(self, message: str, *values: object) -> None:
        """Log a warning, at most once in `WARN_INTERVAL_S` seconds."""
        now = time.monotonic()
        if now - self._warned_at >= WARN_INTERVAL_S:
            self._warned_at = now
            log.warning(message, *values)

    def _on_report(self, sent: InFlightEvent, error: KafkaError | None, message: Message) -> None:
        if error is None:
            sent.state = DONE
            self.acknowledged += 1
            return
        event_id = dict(message.headers() or []).get("ce_id")
        self._handle_error(
            sent,
            error,
            message.topic() or "",
            message.key() or b"",
            event_id.decode() if isinstance(event_id, bytes) else "",
            message.value() or b"",
        )

    def _handle_error(
        self, sent: InFlightEvent, error: KafkaError, topic: str, key: bytes, event_id: str, value: bytes
    ) -> None:
        """Reject the event after a permanent error; else mark it as failed, to be sent again."""
        if error.code() in _PERMANENT:
            sent.state = DONE
            kind = "oversized" if error.code() == KafkaError.MSG_SIZE_TOO_LARGE else "invalid"
            tenant = self.headers.tenant_of(topic, value)
            self._give_up(topic, key, event_id, value, kind, f"Kafka refused it: {error.str()}", tenant)
            return
        self.warn("Kafka refuses events for %s: %s; sending them again", topic, error.str())
        sent.state = FAILED
        self._is_fatal = self._is_fatal or error.fatal()
        self.has_failed = True

    def _give_up(
        self, topic: str, key: bytes, event_id: str, value: bytes, kind: str, reason: str, tenant: str | None
    ) -> None:
        """Reject an event, and queue its dead letter."""
        self.reject(topic, event_id, reason)
        if topic != DEAD_LETTERS:
            self.dead_letters.append(_dead_letter(self._source, topic, key, event_id, value, kind, reason, tenant))


def tenant_of(schema: str, body: bytes) -> str | None:
    """Return the tenant in a record of the schema `schema`; None: it has none, or does not read.

    Only the fields up to the tenant are read: it is one of the first, and the record may be very large.
    """
    try:
        writer = json.loads(schema)
        names = [field["name"] for field in writer["fields"]]
        beginning = writer | {"fields": writer["fields"][: names.index("tenant") + 1]}
        record = cast(dict[str, Any], fastavro.schemaless_reader(io.BytesIO(body), beginning, None))
    except Exception:  # invalid bytes raise any exception
        return None
    return cast(str | None, record["tenant"])


def _dead_letter(
    source: str, topic: str, key: bytes, event_id: str, value: bytes, kind: str, reason: str, tenant: str | None
) -> DeadLetter:
    job = source.partition("/")[0]
    return new_dead_letter(
        event_id=derived_id(job, "refused", event_id),
        occurred_at_us=now_us(),
        job=job,
        topic=topic,
        partition=-1,
        offset=-1,
        key=key,
        value_bytes=len(value),
        value_sha256=hashlib.sha256(value).hexdigest(),
        error=kind,
        reason=reason,
        tenant=tenant,
    )
