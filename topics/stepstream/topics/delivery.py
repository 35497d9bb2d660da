"""The way of a producer's events to Kafka: on disk first, then in order, until Kafka has acknowledged each.

`send` encodes, spools and hands over in the caller's thread, which takes microseconds and never waits for a network.
Where Kafka, the registry or a full window does not let an event through, it stays on disk, and a thread works that
backlog off; new events queue up behind it, so events of one key keep their order. After a crash, or after Kafka failed
an event that it may take later, events at the edge arrive twice, with the same id.
"""

import contextlib
import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from stepstream.config.sections import Kafka
from stepstream.topics.backlog import Backlog, Room, Watch
from stepstream.topics.codec import Codec, CodecError, RegistryUnavailable
from stepstream.topics.events import DeadLetter, SubjectKey, new_dead_letter
from stepstream.topics.headers import Headers
from stepstream.topics.ids import derived_id, now_us
from stepstream.topics.producer import DeliveryFailed, EventProducer
from stepstream.topics.segment import Record
from stepstream.topics.spool import Place

log = logging.getLogger(__name__)

WINDOW_EVENTS = 20_000
WINDOW_BYTES = 32 * 1024 * 1024
RETRY_S = 0.5
WARN_EVERY_S = 10.0
# Each batch costs a request to the broker, and each look at the reports a switch of threads: a few of them per
# second and partition take a fraction of the processor time of one per event, and nobody waits for either.
LINGER_MS = 50.0
POLL_S = 0.05
# Working off a backlog: few enough events at a time that a caller of `send` never waits long for its turn.
CHUNK_EVENTS = 64
YIELD_S = 0.0005

KEYS = "subject-keys"
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
_IN_FLIGHT, _DONE, _FAILED = range(3)


class Left(NamedTuple):
    """What `close` leaves: events that wait on disk for the next process, and events that are gone."""

    kept: int
    lost: int


class _Sent:
    """An event that Kafka's client has; `record` only where the disk has it not."""

    __slots__ = ("place", "record", "size", "state")

    def __init__(self, record: Record | None, place: Place | None, size: int, state: int = _IN_FLIGHT) -> None:
        self.record = record
        self.place = place
        self.size = size
        self.state = state


class Delivery:
    """Safe to share between threads, not across a fork. Close it."""

    def __init__(
        self,
        kafka: Kafka,
        make_codec: Callable[[Callable[[SubjectKey], bool]], Codec],
        source: str,
        watch: Watch,
        room: Room,
        *,
        linger_ms: float = LINGER_MS,
    ) -> None:
        """Takes up what earlier processes left on disk, and begins to deliver.

        Args:
            kafka: the cluster; it need not be there yet.
            make_codec: makes the codec, given what takes on the keys of persons: `codec_of` with `keep_key`.
            source: `ce_source` of the events; its part before the slash is the `job` of dead letters.
            watch: told what becomes of events.
            room: how much may wait, and where.
            linger_ms: longest wait to fill a batch.
        """
        self._watch = watch
        self._source = source
        self.codec = make_codec(self._keep_key)
        self._connect = partial(EventProducer, kafka, self.codec, source, linger_ms=linger_ms)
        self._producer = self._connect()
        self._headers = Headers(self.codec)
        self._lock = threading.Lock()
        self._window: deque[_Sent] = deque()
        self._window_bytes = 0
        self._ahead: deque[tuple[Record, Place | None]] = deque()
        self._keys: dict[str, tuple[Record, _Sent | None]] = {}
        self._sent_keys: set[str] = set()
        self._letters: deque[DeadLetter] = deque()
        self._acknowledged = 0
        self._behind = True
        self._failed = False
        self._fatal = False
        self._retry_at = 0.0
        self._warned_at = -WARN_EVERY_S
        self._backlog = Backlog(room, watch)
        self._backlog.spool = self._backlog.open()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="events", daemon=True)
        self._thread.start()

    def send(self, topic: str, key: str, record: Any, headers: Mapping[str, str] | None = None) -> bool:
        """Queues one event; False if it is lost, since as many wait already as may. Never raises for its content."""
        event_id = record["event_id"]
        try:
            body = self.codec.body(topic, record)
        except (CodecError, RegistryUnavailable) as error:
            self._refuse(topic, event_id, str(error))
            return True
        waiting = Record(topic, key, event_id, record["occurred_at_us"], headers, self._headers.schemas[topic], body)
        with self._lock:
            if topic == KEYS:
                self._behind = True
                self._keys[event_id] = waiting, None
            direct = not self._behind
            try:
                place = self._backlog.keep(waiting, read=direct)
            except Exception as error:  # a key or header that is no text: the caller's work goes on
                self._refuse(topic, event_id, str(error))
                return True
            if direct:
                if self._produce(waiting, place):
                    return True
                self._behind = True
                if place is not None:
                    self._backlog.give_back([(None, place)])
            return place is not None or self._backlog.remember(waiting)

    def waiting(self) -> int:
        """Events that Kafka has not acknowledged yet."""
        return len(self._backlog) + len(self._ahead) + len(self._window)

    def keys_waiting(self) -> bool:
        """Whether keys of persons are not in Kafka yet, so that nothing sealed with them may go there."""
        return bool(self._keys)

    def flush(self, timeout_s: float) -> int:
        """Waits until all is acknowledged, at most `timeout_s` seconds; returns how many events still wait."""
        deadline = time.monotonic() + timeout_s
        while (left := self.waiting()) and time.monotonic() < deadline and self._thread.is_alive():
            time.sleep(0.005)
        return left

    def close(self, timeout_s: float) -> Left:
        """Delivers what it can within `timeout_s` seconds and stops; what is on disk stays there."""
        self.flush(timeout_s)
        self._stopping.set()
        # The thread may be inside a call to a registry that hangs: it is a daemon, so don't wait for that.
        self._thread.join(1.0)
        with self._lock:
            self._producer.poll(0)
            self._settle()
            left = self._left()
            self._backlog.close()
            self._window.clear()
            self._ahead.clear()
        if left.lost:
            self._backlog.lose(left.lost)
        self._report()
        self.codec.close()
        return left

    def _left(self) -> Left:
        spool = self._backlog.spool
        places = [sent.place for sent in self._window if sent.state != _DONE] + [place for _, place in self._ahead]
        kept = sum(1 for place in places if place is not None and spool is not None and spool.holds(place))
        unread = spool.unread if spool is not None else 0
        return Left(kept + unread, len(places) - kept + len(self._backlog) - unread)

    def _keep_key(self, key: SubjectKey) -> bool:
        """Takes on the key of a person: nothing that is sent after this is on its way before Kafka has the key."""
        return self.send(KEYS, key["key_id"], key)

    def _refuse(self, topic: str, event_id: str, why: str) -> None:
        self._watch.refused(1)
        log.error("event %s for %s cannot be published: %s", event_id, topic, why)

    # With the lock held.

    def _produce(self, record: Record, place: Place | None) -> bool:
        """Hands one event to Kafka's client; False: not now."""
        size = len(record.body)
        if self._failed or len(self._window) >= WINDOW_EVENTS or self._window_bytes + size > max(WINDOW_BYTES, size):
            return False
        sent = _Sent(record if place is None else None, place, size)
        if record.topic == KEYS:  # it has gone first, see `_send_keys`
            self._sent_keys.discard(record.event_id)
            sent.state = _DONE
        elif not self._hand_over(record, sent):
            return False
        self._window.append(sent)
        self._window_bytes += size
        return True

    def _hand_over(self, record: Record, sent: _Sent) -> bool:
        envelope = {"event_id": record.event_id, "occurred_at_us": record.occurred_at_us}
        try:
            value = self._headers.value(record)
            if value is None:
                return False
            self._producer.send_encoded(
                record.topic, record.key, value, envelope, record.headers, partial(self._answered, sent)
            )
        except (BufferError, RegistryUnavailable):
            return False
        except KafkaException as error:
            key = record.key.encode(errors="replace")
            self._failure(sent, error.args[0], record.topic, key, record.event_id, record.body)
        except Exception as error:  # whatever is wrong with it, the caller's work goes on
            self._refuse(record.topic, record.event_id, str(error))
            sent.state = _DONE
        return True

    def _settle(self) -> None:
        """Takes what has been acknowledged out of the window."""
        place = None
        while self._window and self._window[0].state == _DONE:
            sent = self._window.popleft()
            self._window_bytes -= sent.size
            place = sent.place or place
        if place is not None and self._backlog.spool is not None:
            self._backlog.spool.delivered(place)
        if self._failed and all(sent.state != _IN_FLIGHT for sent in self._window):
            self._go_back()

    def _go_back(self) -> None:
        """Sends again from the first event that failed on."""
        again = [(sent.record, sent.place) for sent in self._window if sent.place or sent.state == _FAILED]
        self._backlog.give_back(again + [(None if place else record, place) for record, place in self._ahead])
        self._window.clear()
        self._window_bytes = 0
        self._ahead.clear()
        self._failed, self._behind = False, True
        self._retry_at = time.monotonic() + RETRY_S
        if self._fatal:
            self._producer = self._connect()
            self._fatal = False

    # In the thread, without the lock.

    def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                moved = self._turn()
            except Exception:  # nobody else would deliver
                log.exception("delivery goes on after an unexpected fault")
                moved = False
            self._stopping.wait(YIELD_S if moved else POLL_S)

    def _turn(self) -> bool:
        self._producer.poll(0)
        with self._lock:
            self._settle()
        while self._letters:
            letter = self._letters.popleft()
            self.send(LETTERS, (letter["key"] or b"").decode(errors="replace"), letter)
        spool = self._backlog.open()
        if spool is not None:
            with self._lock:
                self._backlog.spool, self._behind = spool, True
        self._report()
        return self._behind and time.monotonic() >= self._retry_at and self._catch_up()

    def _catch_up(self) -> bool:
        """Sends a piece of the backlog; False: there is none, or it cannot be sent now."""
        if not self._ahead:
            with self._lock:
                self._ahead.extend(self._backlog.take())
                if not self._ahead and not self._keys and not self._failed:
                    self._behind = False
        for record, _ in self._ahead:
            if record.topic == KEYS and record.event_id not in self._sent_keys:
                self._keys.setdefault(record.event_id, (record, None))
        if not self._look_up() or not self._send_keys():
            return False
        moved = False
        with self._lock:
            for _ in range(CHUNK_EVENTS):
                if not self._ahead or not self._produce(*self._ahead[0]):
                    break
                self._ahead.popleft()
                moved = True
        return moved

    def _look_up(self) -> bool:
        records = [record for record, _ in self._ahead] + [record for record, _ in list(self._keys.values())]
        known = self._headers.look_up(records)
        if not known:
            self._retry_at = time.monotonic() + RETRY_S
        return known

    def _send_keys(self) -> bool:
        """Sends the keys that were met, ahead of everything else; True once Kafka has them all."""
        for event_id, (record, sent) in list(self._keys.items()):
            if sent is None or sent.state == _FAILED:
                again = _Sent(None, None, 0)
                if self._hand_over(record, again):
                    self._keys[event_id] = record, again
        if self._keys:
            with contextlib.suppress(DeliveryFailed):
                self._producer.flush(POLL_S)
        for event_id, (_, sent) in list(self._keys.items()):
            if sent is not None and sent.state == _DONE:
                self._sent_keys.add(event_id)
                del self._keys[event_id]
        return not self._keys

    def _answered(self, sent: _Sent, error: KafkaError | None, message: Message) -> None:
        if error is None:
            sent.state = _DONE
            self._acknowledged += 1
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

    def _failure(self, sent: _Sent, error: KafkaError, topic: str, key: bytes, event_id: str, value: bytes) -> None:
        """Gives up an event that Kafka will never take, and keeps any other for another try."""
        if error.code() in _PERMANENT:
            sent.state = _DONE
            self._refuse(topic, event_id, f"Kafka refuses it: {error.str()}")
            if topic != LETTERS:
                self._letters.append(_letter(self._source, error, topic, key, event_id, value))
            return
        now = time.monotonic()
        if now - self._warned_at >= WARN_EVERY_S:
            self._warned_at = now
            log.warning("Kafka does not take events for %s: %s; they are sent again", topic, error.str())
        sent.state = _FAILED
        self._failed, self._behind = True, True
        self._fatal = self._fatal or error.fatal()

    def _report(self) -> None:
        delivered, self._acknowledged = self._acknowledged, 0
        if delivered:
            self._watch.delivered(delivered)
        self._watch.backlog(self.waiting(), self._backlog.spool_bytes)
        self._backlog.tell_lost(at_once=self._stopping.is_set())


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
