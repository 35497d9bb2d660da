"""Send events at least once: append each to a local spool, send in order, delete on acknowledgement.

`send` encodes, spools and sends in the caller's thread. It takes microseconds and never waits for the network. If
Kafka, the registry or a full window stops an event, it stays in the backlog; so does a large one, whose content goes to
the store first. A background thread sends the backlog; new
events queue up behind it, so events of one key keep their order. After a crash or a temporary failure, the newest
events may arrive twice, with the same id.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from stepstream.config import KafkaSettings
from stepstream.delivery.backlog import Backlog
from stepstream.delivery.sender import DONE, FAILED, InFlightEvent, InFlightWindow, KafkaSender
from stepstream.delivery.types import BacklogLimits, DeliveryObserver, Event, SpoolPosition, SpoolRecord
from stepstream.topics.catalogue import DEAD_LETTERS, SUBJECT_KEYS
from stepstream.topics.codec import Codec, RegistryUnavailable
from stepstream.topics.events import SubjectKey
from stepstream.topics.producer import DeliveryFailed

log = logging.getLogger(__name__)


RETRY_S = 0.5
# A batch costs a request to the broker, and a poll costs a switch of threads. A few of each per second and partition
# take a fraction of the processor time of one per event. No caller waits for them.
LINGER_MS = 50.0
POLL_S = 0.05
# Events of the backlog to send under the lock: few enough that a caller of `send` never waits long for it.
CHUNK_EVENTS = 256
YIELD_S = 0.0005


class UndeliveredEvents(NamedTuple):
    """Numbers of events that `close` left undelivered."""

    spooled: int
    """On disk: the next process sends them."""
    dropped: int


class SpooledProducer:
    """A producer with a backlog. Threads may share it, forked processes may not. Close it."""

    def __init__(
        self,
        kafka: KafkaSettings,
        make_codec: Callable[[Callable[[SubjectKey], bool]], Codec],
        source: str,
        observer: DeliveryObserver,
        limits: BacklogLimits,
        *,
        linger_ms: float = LINGER_MS,
    ) -> None:
        """Read the spool of earlier processes and begin to send.

        Args:
            kafka: the cluster; it may be unavailable.
            make_codec: makes the codec, given the function that publishes new keys of persons.
            source: `ce_source` of the events; its part before the slash is the `job` of dead letters.
            observer: receives the outcome of events.
            limits: folder and largest size of the backlog.
            linger_ms: longest wait to fill a batch.
        """
        self._observer = observer
        self.codec = make_codec(self._send_subject_key)
        self._sender = KafkaSender(kafka, self.codec, source, observer, linger_ms)
        self._lock = threading.Lock()
        self._window = InFlightWindow()
        self._chunk: deque[tuple[SpoolRecord | None, SpoolPosition | None]] = deque()
        """Events taken from the backlog, to be sent next."""
        self._pending_keys: dict[str, tuple[SpoolRecord, InFlightEvent | None]] = {}
        """Keys of persons that Kafka has not acknowledged, by event id."""
        self._delivered_keys: set[str] = set()
        """Event ids of keys that Kafka has, but that are still in the backlog."""
        self._has_backlog = True
        self._retry_at = 0.0
        self._backlog = Backlog(limits, observer)
        self._backlog.spool = self._backlog.open_spool()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def send(self, topic: str, key: str, record: Any, headers: Mapping[str, str] | None = None) -> bool:
        """Send one event, now or from the backlog; False: the backlog is full and the event is dropped.

        Never raises for an invalid record: it is rejected, counted and logged.
        """
        return self.send_all([Event(topic, key, record, headers)]) == 1

    def send_all(self, events: Sequence[Event]) -> int:
        """Send several events with one lock; return how many are not dropped."""
        encoded = [record for event in events if (record := self._sender.encode(event)) is not None]
        with self._lock:
            dropped = [record for record in encoded if not self._accept(record)]
        return len(events) - len(dropped)

    def unacknowledged(self) -> int:
        """Return the number of events that Kafka has not acknowledged."""
        return len(self._backlog) + len(self._chunk) + len(self._window)

    def spool_bytes(self) -> int:
        """Return the size of the spool; the observer may learn it seconds later, while the registry is away."""
        return self._backlog.spool_bytes

    def has_pending_keys(self) -> bool:
        """Return True while Kafka lacks the key of a person: events sealed with it must not be sent."""
        return bool(self._pending_keys)

    def flush(self, timeout_s: float) -> int:
        """Block until Kafka acknowledged everything, at most `timeout_s` seconds; return the unacknowledged events."""
        deadline = time.monotonic() + timeout_s
        while (remaining := self.unacknowledged()) and time.monotonic() < deadline and self._thread.is_alive():
            time.sleep(0.005)
        return remaining

    def close(self, timeout_s: float) -> UndeliveredEvents:
        """Flush for at most `timeout_s` seconds and stop; events on disk stay there."""
        self.flush(timeout_s)
        self._stopping.set()
        # The daemon thread may hang in a call to the registry: do not wait for it.
        self._thread.join(1.0)
        with self._lock:
            self._sender.producer.poll(0)
            self._process_answers()
            undelivered = self._undelivered()
            self._backlog.close()
            self._window.clear()
            self._chunk.clear()
        if undelivered.dropped:
            self._backlog.count_dropped(undelivered.dropped)
        self._report()
        self.codec.close()
        return undelivered

    def _undelivered(self) -> UndeliveredEvents:
        spool = self._backlog.spool
        positions = self._window.undelivered_positions() + [position for _, position in self._chunk]
        on_disk = sum(1 for position in positions if position and spool is not None and spool.contains(position))
        unread = spool.unread if spool is not None else 0
        return UndeliveredEvents(on_disk + unread, len(positions) - on_disk + len(self._backlog) - unread)

    def _send_subject_key(self, key: SubjectKey) -> bool:
        """Publish the key of a person. Events sent after this call wait until Kafka has the key."""
        return self.send(SUBJECT_KEYS, key["key_id"], key)

    # Methods that need the lock.

    def _accept(self, record: SpoolRecord) -> bool:
        """Spool one event and send it, or leave it in the backlog; False: it is dropped."""
        if record.topic == SUBJECT_KEYS:
            self._has_backlog = True
            self._pending_keys[record.event_id] = record, None
        elif self.codec.is_large(record.topic, record.body):
            self._has_backlog = True  # the background thread moves its content to the store
        send_now = not (self._has_backlog or self._sender.has_failed)
        try:
            position = self._backlog.append_to_spool(record, mark_read=send_now)
        except Exception as error:  # a key or header that is not text must not stop the caller's work
            self._sender.reject(record.topic, record.event_id, str(error))
            return True
        if send_now:
            if self._send(record, position):
                return True
            self._has_backlog = True
            if position is not None:
                self._backlog.give_back([(None, position)])
        return position is not None or self._backlog.append_to_memory(record)

    def _send(self, record: SpoolRecord | None, position: SpoolPosition | None) -> bool:
        """Give one event to Kafka's client, or skip a rejected one (None); False: try again later."""
        size = len(record.body) if record is not None else 0
        if self._sender.has_failed or not self._window.has_room(size):
            return False
        sent = InFlightEvent(
            record.key if record is not None else "", record if position is None else None, position, size
        )
        if record is None:
            sent.state = DONE
        elif record.topic == SUBJECT_KEYS:  # `_send_keys` sent it ahead of the backlog
            self._delivered_keys.discard(record.event_id)
            sent.state = DONE
        elif not self._sender.send(record, sent):
            return False
        self._window.add(sent)
        return True

    def _process_answers(self) -> None:
        """Mark the finished events at the window's front as delivered; after a failure, return the rest."""
        position = self._window.pop_done()
        if position is not None and self._backlog.spool is not None:
            self._backlog.spool.mark_delivered(position)
        if self._sender.has_failed and self._window.is_answered():
            self._return_to_backlog()

    def _return_to_backlog(self) -> None:
        """Return the failed events, and the later ones of their keys, to the backlog."""
        unsent = [(None if position else record, position) for record, position in self._chunk]
        self._backlog.give_back(self._window.events_to_resend() + unsent)
        self._window.clear()
        self._chunk.clear()
        self._has_backlog = True
        self._retry_at = time.monotonic() + RETRY_S
        self._sender.recover()

    # Methods of the background thread, without the lock.

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                has_sent = self._run_once()
            except Exception:  # without this thread no backlog would be sent
                log.exception("unexpected error while sending the backlog: trying again")
                has_sent = False
            self._stopping.wait(YIELD_S if has_sent else POLL_S)

    def _run_once(self) -> bool:
        self._sender.producer.poll(0)
        with self._lock:
            self._process_answers()
        while self._sender.dead_letters:
            letter = self._sender.dead_letters.popleft()
            self.send(DEAD_LETTERS, (letter["key"] or b"").decode(errors="replace"), letter)
        spool = self._backlog.open_spool()
        if spool is not None:
            with self._lock:
                self._backlog.spool, self._has_backlog = spool, True
        self._report()
        return self._has_backlog and time.monotonic() >= self._retry_at and self._send_chunk()

    def _send_chunk(self) -> bool:
        """Send the next events of the backlog; False: it is empty, or nothing can be sent now."""
        if not self._chunk:
            with self._lock:
                self._chunk.extend(self._backlog.take())
                if not self._chunk and not self._pending_keys and not self._sender.has_failed:
                    self._has_backlog = False
        for record, _ in self._chunk:
            if record is not None and record.topic == SUBJECT_KEYS and record.event_id not in self._delivered_keys:
                self._pending_keys.setdefault(record.event_id, (record, None))
        # Readers need the key before the sealed event. Translation may create another key: it goes first, too.
        if not self._look_up_headers() or not self._send_keys():
            return False
        self._prepare_chunk()
        if self._pending_keys:
            return True
        has_sent = False
        with self._lock:
            for _ in range(CHUNK_EVENTS):
                if not self._chunk or not self._send(*self._chunk[0]):
                    break
                self._chunk.popleft()
                has_sent = True
        return has_sent

    def _look_up_headers(self) -> bool:
        records = [record for record, _ in self._chunk if record is not None]
        records += [record for record, _ in list(self._pending_keys.values())]
        is_available = self._sender.headers.look_up(records)
        if not is_available:
            self._retry_at = time.monotonic() + RETRY_S
        return is_available

    def _send_keys(self) -> bool:
        """Send the pending keys of persons ahead of all other events; True once Kafka has them all."""
        for event_id, (record, sent) in list(self._pending_keys.items()):
            if sent is None or sent.state == FAILED:
                resent = InFlightEvent(record.key, None, None, 0)
                translated = self._sender.to_sendable(record)
                if translated is None:
                    resent.state = DONE
                if translated is None or self._sender.send(translated, resent):
                    self._pending_keys[event_id] = record, resent
        if self._pending_keys:
            with contextlib.suppress(DeliveryFailed):
                self._sender.producer.flush(POLL_S)
        for event_id, (_, sent) in list(self._pending_keys.items()):
            if sent is not None and sent.state == DONE:
                self._delivered_keys.add(event_id)
                del self._pending_keys[event_id]
        return not self._pending_keys

    def _prepare_chunk(self) -> None:
        """Make the chunk sendable, up to the first record whose key, or store of large content, is unavailable.

        Runs without the lock: it may wait for a key, whose tables need locks that a caller of `send` may hold.
        """
        for index, (record, position) in enumerate(list(self._chunk)):
            if record is None:
                continue
            try:
                translated = self._sender.to_sendable(record)
            except RegistryUnavailable as error:
                self._sender.warn("events wait in the backlog: %s", error)
                self._retry_at = time.monotonic() + RETRY_S
                return
            if translated is not record:
                with self._lock:
                    if self._stopping.is_set():  # `close` left it to the next process
                        return
                    self._chunk[index] = translated, position

    def _report(self) -> None:
        delivered, self._sender.acknowledged = self._sender.acknowledged, 0
        if delivered:
            self._observer.on_delivered(delivered)
        self._observer.on_backlog(self.unacknowledged(), self._backlog.spool_bytes)
        self._backlog.log_dropped(now=self._stopping.is_set())
