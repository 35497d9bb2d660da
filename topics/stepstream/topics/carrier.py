"""Hands events to Kafka's client one by one, and takes its answers: arrived, to be sent again, or never to be taken."""

import hashlib
import logging
import time
from collections import deque
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message

from stepstream.config import Kafka
from stepstream.topics.backlog import Watch
from stepstream.topics.codec import Codec, CodecError, RegistryUnavailable
from stepstream.topics.encoded import Event
from stepstream.topics.events import DeadLetter, new_dead_letter
from stepstream.topics.headers import Headers
from stepstream.topics.ids import derived_id, now_us
from stepstream.topics.producer import EventProducer
from stepstream.topics.segment import Record
from stepstream.topics.window import DONE, FAILED, Sent

log = logging.getLogger(__name__)

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


class Carrier:
    """One connection to Kafka at a time. `hand_over` is for its owner's lock, `ours` for outside it."""

    def __init__(self, kafka: Kafka, codec: Codec, source: str, watch: Watch, linger_ms: float) -> None:
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

    def encoded(self, event: Event) -> Record | None:
        """An event as it waits; None: it is refused."""
        topic, key, record, headers = event
        event_id = record["event_id"]
        try:
            body = self._codec.body(topic, record)
        except (CodecError, RegistryUnavailable) as error:
            self.refuse(topic, event_id, str(error))
            return None
        return Record(topic, key, event_id, record["occurred_at_us"], headers, self.headers.schemas[topic], body)

    def hand_over(self, record: Record, sent: Sent) -> bool:
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
            self.refuse(record.topic, record.event_id, str(error))
            sent.state = DONE
        return True

    def ours(self, record: Record) -> Record | None:
        """A record in a schema that the registry holds; None: it is refused. May wait for a person's key.

        Raises:
            RegistryUnavailable: the key cannot be had now.
        """
        try:
            return self.headers.ours(record)
        except RegistryUnavailable:
            raise
        except Exception as error:  # whatever is wrong with it, the others' way goes on
            self.refuse(record.topic, record.event_id, str(error))
            return None

    def renew(self) -> None:
        """Goes on after a failure, with a new connection where the old one is of no more use."""
        self.failed = False
        if self._fatal:
            self.producer = self._connect()
            self._fatal = False

    def refuse(self, topic: str, event_id: str, why: str) -> None:
        """Counts an event that can never be published, and says so."""
        self._watch.refused(1)
        log.error("event %s for %s cannot be published: %s", event_id, topic, why)

    def warn(self, line: str, *about: object) -> None:
        """Logs why events wait, now and then."""
        now = time.monotonic()
        if now - self._warned_at >= WARN_EVERY_S:
            self._warned_at = now
            log.warning(line, *about)

    def _answered(self, sent: Sent, error: KafkaError | None, message: Message) -> None:
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

    def _failure(self, sent: Sent, error: KafkaError, topic: str, key: bytes, event_id: str, value: bytes) -> None:
        """Gives up an event that Kafka will never take, and keeps any other for another try."""
        if error.code() in _PERMANENT:
            sent.state = DONE
            self.refuse(topic, event_id, f"Kafka refuses it: {error.str()}")
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
