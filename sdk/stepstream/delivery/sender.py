"""Hands events to Kafka's client one by one, and takes its answers: arrived, to be sent again, or never to be taken.

The five bytes before each body, by the schema it was written with, which may be older than this package.

The events that Kafka's client has and Kafka has not acknowledged, in the order in which they were sent.
"""

import hashlib
import logging
import time
from collections import deque
from collections.abc import Iterable
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message

from stepstream.config import KafkaSettings
from stepstream.delivery.types import DeliveryObserver, Event, SpoolPosition, SpoolRecord
from stepstream.schemas import schema_text
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.codec import Codec, CodecError, NotRegistered, RegistryUnavailable
from stepstream.topics.events import DeadLetter, new_dead_letter
from stepstream.topics.ids import derived_id, now_us
from stepstream.topics.producer import EventProducer

log = logging.getLogger(__name__)


class Headers:
    """What the registry has said. `look_up` and `ours` block, in one thread; the rest never does."""

    def __init__(self, codec: Codec) -> None:
        self.schemas = {topic.name: schema_text(topic.schema) for topic in TOPICS.values()}
        """Text of this package's schema of each topic."""
        self._codec = codec
        self._known: dict[tuple[str, str], bytes] = {}
        self._foreign: set[tuple[str, str]] = set()
        self._told = False

    def value(self, record: SpoolRecord) -> bytes | None:
        """The record's value on the wire; None: the registry has not said yet, or it must be translated first."""
        header = self._known.get((record.topic, record.schema))
        return None if header is None else header + record.body

    def ours(self, record: SpoolRecord) -> SpoolRecord:
        """The record in this package's schema, where the registry does not hold its own; blocks for a person's key.

        Raises:
            CodecError: its body cannot be read.
            KeysUnavailable: it is sealed and its key cannot be had now.
        """
        written = record.topic, record.schema
        if written not in self._foreign:
            return record
        return record._replace(schema=self.schemas[record.topic], body=self._codec.translate(*written, record.body))

    def look_up(self, records: Iterable[SpoolRecord]) -> bool:
        """Asks the registry for what these need and is not known yet; False: it does not say.

        A schema that nobody has registered, since the registry was away for as long as it was in use, is replaced by
        this package's.
        """
        for topic, schema in {(record.topic, record.schema) for record in records} - self._known.keys() - self._foreign:
            ours = schema == self.schemas[topic]
            try:
                try:
                    self._known[topic, schema] = self._codec.header(topic, None if ours else schema)
                except NotRegistered:
                    if ours:
                        raise
                    self._known[topic, self.schemas[topic]] = self._codec.header(topic)
                    self._foreign.add((topic, schema))
            except RegistryUnavailable as error:
                if not self._told:
                    log.warning("events wait: %s", error)
                    self._told = True
                return False
        if self._told:
            log.info("the schema registry answers: events are delivered again")
            self._told = False
        return True


WINDOW_EVENTS = 20_000
WINDOW_BYTES = 32 * 1024 * 1024
IN_FLIGHT, DONE, FAILED = range(3)


class InFlightEvent:
    """An event that Kafka's client has; `record` only where the disk has it not."""

    __slots__ = ("key", "place", "record", "size", "state")

    def __init__(self, key: str, record: SpoolRecord | None, place: SpoolPosition | None, size: int) -> None:
        self.key = key
        self.record = record
        self.place = place
        self.size = size
        self.state = IN_FLIGHT


class InFlightWindow:
    """Its owner's lock guards it; the state of what is in it may change at any time."""

    def __init__(self) -> None:
        self._sent: deque[InFlightEvent] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sent)

    def has_room(self, size: int) -> bool:
        """Whether one more event of so many bytes may be sent."""
        return len(self._sent) < WINDOW_EVENTS and self._bytes + size <= max(WINDOW_BYTES, size)

    def add(self, sent: InFlightEvent) -> None:
        """Takes in the event that was sent last."""
        self._sent.append(sent)
        self._bytes += sent.size

    def settle(self) -> SpoolPosition | None:
        """Lets go what has been acknowledged and has nothing unacknowledged before it; the last place among it."""
        place = None
        while self._sent and self._sent[0].state == DONE:
            sent = self._sent.popleft()
            self._bytes -= sent.size
            place = sent.place or place
        return place

    def is_answered(self) -> bool:
        """Whether Kafka has said of every event what became of it."""
        return all(sent.state != IN_FLIGHT for sent in self._sent)

    def undelivered(self) -> list[SpoolPosition | None]:
        """Where the events are kept that have not arrived; None for one in memory."""
        return [sent.place for sent in self._sent if sent.state != DONE]

    def again(self) -> list[tuple[SpoolRecord | None, SpoolPosition | None]]:
        """What must be sent again for the sake of order: everything on disk, and of those in memory each from the
        first of its key on that failed. What arrives twice has the same id.
        """
        broken: set[str] = set()
        found = []
        for sent in self._sent:
            if sent.state == FAILED:
                broken.add(sent.key)
            if sent.place is not None or sent.key in broken:
                found.append((sent.record, sent.place))
        return found

    def clear(self) -> None:
        """Forgets all of them."""
        self._sent.clear()
        self._bytes = 0


WARN_EVERY_S = 10.0
LETTERS = "dead-letters"
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
"""What is wrong with the event itself; anything else may mend, so the event waits."""


class KafkaSender:
    """One connection to Kafka at a time. `hand_over` is for its owner's lock, `ours` for outside it."""

    def __init__(
        self, kafka: KafkaSettings, codec: Codec, source: str, watch: DeliveryObserver, linger_ms: float
    ) -> None:
        """Connects lazily; the arguments are those of `Delivery`."""
        self._connect = partial(EventProducer, kafka, codec, source, linger_ms=linger_ms)
        self.producer = self._connect()
        self.headers = Headers(codec)
        self._codec = codec
        self.letters: deque[DeadLetter] = deque()
        """Dead letters to send, of events that Kafka has refused."""
        self.failed = False
        """Whether an event failed that Kafka may take later: then nothing more is sent until `renew`."""
        self.acknowledged = 0
        self._source = source
        self._watch = watch
        self._fatal = False
        self._warned_at = -WARN_EVERY_S

    def encode(self, event: Event) -> SpoolRecord | None:
        """An event as it waits; None: it is refused."""
        topic, key, record, headers = event
        event_id = record["event_id"]
        try:
            body = self._codec.body(topic, record)
        except (CodecError, RegistryUnavailable) as error:
            self.dead_letter(topic, event_id, str(error))
            return None
        return SpoolRecord(topic, key, event_id, record["occurred_at_us"], headers, self.headers.schemas[topic], body)

    def send(self, record: SpoolRecord, sent: InFlightEvent) -> bool:
        """Gives one event to the client; False: not now. Never blocks, never raises."""
        envelope = {"event_id": record.event_id, "occurred_at_us": record.occurred_at_us}
        try:
            value = self.headers.value(record)
            if value is None:
                return False
            self.producer.send_encoded(
                record.topic, record.key, value, envelope, record.headers, partial(self._answered, sent)
            )
        except BufferError:
            return False
        except KafkaException as error:
            key = record.key.encode(errors="replace")
            self._failure(sent, error.args[0], record.topic, key, record.event_id, record.body)
        except Exception as error:  # whatever is wrong with it, the caller's work goes on
            self.dead_letter(record.topic, record.event_id, str(error))
            sent.state = DONE
        return True

    def ours(self, record: SpoolRecord) -> SpoolRecord | None:
        """A record in a schema that the registry holds; None: it is refused. May wait for a person's key.

        Raises:
            RegistryUnavailable: the key cannot be had now.
        """
        try:
            return self.headers.ours(record)
        except RegistryUnavailable:
            raise
        except Exception as error:  # whatever is wrong with it, the others' way goes on
            self.dead_letter(record.topic, record.event_id, str(error))
            return None

    def renew(self) -> None:
        """Goes on after a failure, with a new connection where the old one is of no more use."""
        self.failed = False
        if self._fatal:
            self.producer = self._connect()
            self._fatal = False

    def dead_letter(self, topic: str, event_id: str, why: str) -> None:
        """Counts an event that can never be published, and says so."""
        self._watch.refused(1)
        log.error("event %s for %s cannot be published: %s", event_id, topic, why)

    def warn(self, line: str, *about: object) -> None:
        """Logs why events wait, now and then."""
        now = time.monotonic()
        if now - self._warned_at >= WARN_EVERY_S:
            self._warned_at = now
            log.warning(line, *about)

    def _answered(self, sent: InFlightEvent, error: KafkaError | None, message: Message) -> None:
        if error is None:
            sent.state = DONE
            self.acknowledged += 1
            return
        event_id = dict(message.headers() or []).get("ce_id")
        self._failure(
            sent,
            error,
            message.topic() or "",
            message.key() or b"",
            event_id.decode() if isinstance(event_id, bytes) else "",
            message.value() or b"",
        )

    def _failure(
        self, sent: InFlightEvent, error: KafkaError, topic: str, key: bytes, event_id: str, value: bytes
    ) -> None:
        """Gives up an event that Kafka will never take, and keeps any other for another try."""
        if error.code() in _PERMANENT:
            sent.state = DONE
            self.dead_letter(topic, event_id, f"Kafka refuses it: {error.str()}")
            if topic != LETTERS:
                self.letters.append(_letter(self._source, error, topic, key, event_id, value))
            return
        self.warn("Kafka does not take events for %s: %s; they are sent again", topic, error.str())
        sent.state = FAILED
        self._fatal = self._fatal or error.fatal()
        self.failed = True


def _letter(source: str, error: KafkaError, topic: str, key: bytes, event_id: str, value: bytes) -> DeadLetter:
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
        error="oversized" if error.code() == KafkaError.MSG_SIZE_TOO_LARGE else "invalid",
        reason=f"Kafka refused it: {error.str()}",
    )
