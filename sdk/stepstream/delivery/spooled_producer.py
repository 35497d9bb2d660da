"""The way of a producer's events to Kafka: on disk first, then in order, until Kafka has acknowledged each.

`send` encodes, spools and hands over in the caller's thread, which takes microseconds and never waits for a network.
Where Kafka, the registry or a full window does not let an event through, it stays on disk, and a thread works that
backlog off; new events queue up behind it, so events of one key keep their order. After a crash, or after Kafka failed
an event that it may take later, events at the edge arrive twice, with the same id.
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
from stepstream.delivery.sender import DONE, FAILED, LETTERS, InFlightEvent, InFlightWindow, KafkaSender
from stepstream.delivery.types import BacklogLimits, DeliveryObserver, Event, SpoolPosition, SpoolRecord
from stepstream.topics.codec import Codec, RegistryUnavailable
from stepstream.topics.events import SubjectKey
from stepstream.topics.producer import DeliveryFailed

log = logging.getLogger(__name__)

RETRY_S = 0.5
# Each batch costs a request to the broker, and each look at the reports a switch of threads: a few of them per
# second and partition take a fraction of the processor time of one per event, and nobody waits for either.
LINGER_MS = 50.0
POLL_S = 0.05
# Working off a backlog: few enough events at a time that a caller of `send` never waits long for its turn.
CHUNK_EVENTS = 256
YIELD_S = 0.0005

KEYS = "subject-keys"


class UndeliveredEvents(NamedTuple):
    """What `close` leaves: events that wait on disk for the next process, and events that are gone."""

    kept: int
    lost: int


class SpooledProducer:
    """Safe to share between threads, not across a fork. Close it."""

    def __init__(
        self,
        kafka: KafkaSettings,
        make_codec: Callable[[Callable[[SubjectKey], bool]], Codec],
        source: str,
        watch: DeliveryObserver,
        room: BacklogLimits,
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
        self.codec = make_codec(self._keep_key)
        self._carrier = KafkaSender(kafka, self.codec, source, watch, linger_ms)
        self._lock = threading.Lock()
        self._window = InFlightWindow()
        self._ahead: deque[tuple[SpoolRecord | None, SpoolPosition | None]] = deque()
        self._keys: dict[str, tuple[SpoolRecord, InFlightEvent | None]] = {}
        self._sent_keys: set[str] = set()
        self._behind = True
        self._retry_at = 0.0
        self._backlog = Backlog(room, watch)
        self._backlog.spool = self._backlog.open()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="events", daemon=True)
        self._thread.start()

    def send(self, topic: str, key: str, record: Any, headers: Mapping[str, str] | None = None) -> bool:
        """Queues one event; False if it is lost, since as many wait already as may. Never raises for its content."""
        return self.send_all([Event(topic, key, record, headers)]) == 1

    def send_all(self, events: Sequence[Event]) -> int:
        """As `send`, for less: each step of the work is done for all before the next. Returns how many are not lost."""
        encoded = [record for event in events if (record := self._carrier.encode(event)) is not None]
        with self._lock:
            lost = [record for record in encoded if not self._take(record)]
        return len(events) - len(lost)

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

    def close(self, timeout_s: float) -> UndeliveredEvents:
        """Delivers what it can within `timeout_s` seconds and stops; what is on disk stays there."""
        self.flush(timeout_s)
        self._stopping.set()
        # The thread may be inside a call to a registry that hangs: it is a daemon, so don't wait for that.
        self._thread.join(1.0)
        with self._lock:
            self._carrier.producer.poll(0)
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

    def _left(self) -> UndeliveredEvents:
        spool = self._backlog.spool
        places = self._window.undelivered() + [place for _, place in self._ahead]
        kept = sum(1 for place in places if place is not None and spool is not None and spool.holds(place))
        unread = spool.unread if spool is not None else 0
        return UndeliveredEvents(kept + unread, len(places) - kept + len(self._backlog) - unread)

    def _keep_key(self, key: SubjectKey) -> bool:
        """Takes on the key of a person: nothing that is sent after this is on its way before Kafka has the key."""
        return self.send(KEYS, key["key_id"], key)

    # With the lock held.

    def _take(self, waiting: SpoolRecord) -> bool:
        """Spools one event and hands it over, or leaves it to the thread; False: it is lost."""
        if waiting.topic == KEYS:
            self._behind = True
            self._keys[waiting.event_id] = waiting, None
        direct = not (self._behind or self._carrier.failed)
        try:
            place = self._backlog.keep(waiting, read=direct)
        except Exception as error:  # a key or header that is no text: the caller's work goes on
            self._carrier.dead_letter(waiting.topic, waiting.event_id, str(error))
            return True
        if direct:
            if self._produce(waiting, place):
                return True
            self._behind = True
            if place is not None:
                self._backlog.give_back([(None, place)])
        return place is not None or self._backlog.remember(waiting)

    def _produce(self, record: SpoolRecord | None, place: SpoolPosition | None) -> bool:
        """Hands one event to Kafka's client, or passes one over that was refused (None); False: not now."""
        size = len(record.body) if record is not None else 0
        if self._carrier.failed or not self._window.has_room(size):
            return False
        sent = InFlightEvent(record.key if record is not None else "", record if place is None else None, place, size)
        if record is None:
            sent.state = DONE
        elif record.topic == KEYS:  # it has gone first, see `_send_keys`
            self._sent_keys.discard(record.event_id)
            sent.state = DONE
        elif not self._carrier.send(record, sent):
            return False
        self._window.add(sent)
        return True

    def _settle(self) -> None:
        """Takes what has been acknowledged out of the window."""
        place = self._window.settle()
        if place is not None and self._backlog.spool is not None:
            self._backlog.spool.mark_delivered(place)
        if self._carrier.failed and self._window.is_answered():
            self._go_back()

    def _go_back(self) -> None:
        """Sends again what has failed, and what came after it of the same keys."""
        again = self._window.again()
        self._backlog.give_back(again + [(None if place else record, place) for record, place in self._ahead])
        self._window.clear()
        self._ahead.clear()
        self._behind = True
        self._retry_at = time.monotonic() + RETRY_S
        self._carrier.renew()

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
        self._carrier.producer.poll(0)
        with self._lock:
            self._settle()
        while self._carrier.letters:
            letter = self._carrier.letters.popleft()
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
                if not self._ahead and not self._keys and not self._carrier.failed:
                    self._behind = False
        for record, _ in self._ahead:
            if record is not None and record.topic == KEYS and record.event_id not in self._sent_keys:
                self._keys.setdefault(record.event_id, (record, None))
        # What is sealed opens only once Kafka has its key; translating may make another key, which goes first too.
        if not self._look_up() or not self._send_keys():
            return False
        self._translate()
        if self._keys:
            return True
        moved = False
        with self._lock:
            for _ in range(CHUNK_EVENTS):
                if not self._ahead or not self._produce(*self._ahead[0]):
                    break
                self._ahead.popleft()
                moved = True
        return moved

    def _look_up(self) -> bool:
        records = [record for record, _ in self._ahead if record is not None]
        records += [record for record, _ in list(self._keys.values())]
        known = self._carrier.headers.look_up(records)
        if not known:
            self._retry_at = time.monotonic() + RETRY_S
        return known

    def _translate(self) -> None:
        """Puts what waits into schemas that the registry holds, as far as the keys of persons can be had.

        Without the lock: it may wait for a key, whose tables want locks that a caller of `send` may hold.
        """
        for at, (record, place) in enumerate(list(self._ahead)):
            if record is None:
                continue
            try:
                ours = self._carrier.ours(record)
            except RegistryUnavailable as error:
                self._carrier.warn("events wait: %s", error)
                self._retry_at = time.monotonic() + RETRY_S
                return
            if ours is not record:
                with self._lock:
                    if self._stopping.is_set():  # it has been left to the next process
                        return
                    self._ahead[at] = ours, place

    def _send_keys(self) -> bool:
        """Sends the keys that were met, ahead of everything else; True once Kafka has them all."""
        for event_id, (record, sent) in list(self._keys.items()):
            if sent is None or sent.state == FAILED:
                again, ours = InFlightEvent(record.key, None, None, 0), self._carrier.ours(record)
                if ours is None:
                    again.state = DONE
                if ours is None or self._carrier.send(ours, again):
                    self._keys[event_id] = record, again
        if self._keys:
            with contextlib.suppress(DeliveryFailed):
                self._carrier.producer.flush(POLL_S)
        for event_id, (_, sent) in list(self._keys.items()):
            if sent is not None and sent.state == DONE:
                self._sent_keys.add(event_id)
                del self._keys[event_id]
        return not self._keys

    def _report(self) -> None:
        delivered, self._carrier.acknowledged = self._carrier.acknowledged, 0
        if delivered:
            self._watch.delivered(delivered)
        self._watch.backlog(self.waiting(), self._backlog.spool_bytes)
        self._backlog.tell_lost(at_once=self._stopping.is_set())
