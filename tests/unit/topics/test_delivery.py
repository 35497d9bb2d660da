"""Delivery against a scripted client of Kafka: whatever fails, events arrive in order, and none is lost quietly."""

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from sample_records import feedback, step
from waiting import PATIENCE_S, until

from stepstream.config import KafkaSettings, SchemaRegistrySettings
from stepstream.delivery import sender
from stepstream.delivery import spooled_producer as module
from stepstream.delivery.spool import Spool
from stepstream.delivery.spooled_producer import KEYS, SpooledProducer, UndeliveredEvents
from stepstream.delivery.types import BacklogLimits, SpoolRecord
from stepstream.schemas import schema_text
from stepstream.topics.codec import Codec, KeysUnavailable, NotRegistered, RegistryUnavailable, Sealing
from stepstream.topics.events import SubjectKey, new_subject_key

MB = 1024 * 1024


class Message:
    def __init__(self, topic: str, key: str, value: bytes, event_id: str) -> None:
        self._of = topic, key.encode(), value, [("ce_id", event_id.encode())]

    def topic(self) -> str:
        return self._of[0]

    def key(self) -> bytes:
        return self._of[1]

    def value(self) -> bytes:
        return self._of[2]

    def headers(self) -> list[tuple[str, bytes]]:
        return self._of[3]


class Broker:
    """Stands for Kafka and its client. `log` is what has arrived, by event id."""

    def __init__(self) -> None:
        self.up = True
        self.room = 10**9
        self.log: list[tuple[str, str]] = []
        self.values: dict[str, bytes] = {}
        self.queue: list[tuple[Message, Any]] = []
        self.fail: Callable[[str], int | None] = lambda event_id: None

    def ids(self, topic: str = "steps") -> list[str]:
        return [event_id for name, event_id in self.log if name == topic]

    def producer(self, *_: Any, **__: Any) -> "Broker":
        return self

    def send_encoded(
        self, topic: str, key: str, value: bytes, record: Any, headers: Any = None, on_delivery: Any = None
    ) -> None:
        if len(self.queue) >= self.room:
            raise BufferError
        if len(value) > 10 * MB:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self.queue.append((Message(topic, key, value, record["event_id"]), on_delivery))

    def poll(self, timeout_s: float = 0.0) -> int:
        if not self.up:
            return 0
        queue, self.queue = self.queue, []
        for message, answer in queue:
            event_id = message.headers()[0][1].decode()
            fault = self.fail(event_id)
            if fault is None:
                self.log.append((message.topic(), event_id))
                self.values[event_id] = message.value()
            answer(None if fault is None else KafkaError(fault), message)
        return len(queue)

    def flush(self, timeout_s: float) -> None:
        self.poll()


class Registry(Codec):
    """A codec whose registry is a flag."""

    def __init__(self, sealing: Sealing | None = None) -> None:
        super().__init__(SchemaRegistrySettings(), sealing)
        self.up = True
        self.unknown: set[str] = set()

    def header(self, topic: str, text: str | None = None) -> bytes:
        if not self.up:
            raise RegistryUnavailable("away")
        if text in self.unknown:
            raise NotRegistered("no such schema")
        return b"\0\0\0\0\2" if text else b"\0\0\0\0\1"


class Counts:
    def __init__(self) -> None:
        self.counted = {"delivered": 0, "refused": 0, "lost": 0, "unspooled": 0}
        self.waiting = (0, 0)

    def __getattr__(self, name: str) -> Callable[[int], None]:
        return lambda events: self.counted.update({name: self.counted[name] + events})

    def backlog(self, events: int, spool_bytes: int) -> None:
        self.waiting = events, spool_bytes


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(sender, "EventProducer", broker.producer)
    monkeypatch.setattr(module, "POLL_S", 0.002)
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    return broker


@pytest.fixture
def registry() -> Iterator[Registry]:
    codec = Registry()
    yield codec
    codec.close()


@pytest.fixture
def start(registry: Registry, tmp_path: Path) -> Iterator[Callable[..., tuple[SpooledProducer, Counts]]]:
    made = []

    def start(folder: Path | None = tmp_path / "spool", **room: Any) -> tuple[SpooledProducer, Counts]:
        counts = Counts()
        fields = {"spool_bytes": MB, "memory_bytes": MB} | room
        made.append(
            SpooledProducer(KafkaSettings(), lambda _: registry, "test/1", counts, BacklogLimits(folder, **fields))
        )
        return made[-1], counts

    yield start
    for delivery in made:
        delivery.close(0)


def push(delivery: SpooledProducer, numbers: range, **fields: Any) -> list[bool]:
    return [
        delivery.send("steps", f"t{n % 3}", step(f"t{n % 3}", n, event_id=str(n), **fields), {"traceparent": str(n)})
        for n in numbers
    ]


def arrived(broker: Broker, numbers: range) -> bool:
    return list(dict.fromkeys(broker.ids())) == [str(n) for n in numbers]


def kill(delivery: SpooledProducer) -> None:
    """What kill -9 leaves of it."""
    delivery._stopping.set()
    delivery._thread.join()
    spool = delivery._backlog.spool
    assert spool is not None
    for segment in spool._segments.values():
        segment.close()
    os.close(spool._lock)
    delivery._backlog.spool = None


def test_in_order_and_gone_from_disk(broker: Broker, start: Any, tmp_path: Path) -> None:
    delivery, counts = start()
    assert all(push(delivery, range(500)))
    assert delivery.flush(PATIENCE_S) == 0
    assert arrived(broker, range(500))
    assert delivery.close(5) == UndeliveredEvents(0, 0)
    assert counts.counted == {"delivered": 500, "refused": 0, "lost": 0, "unspooled": 0}
    assert not list(tmp_path.rglob("*.spool"))


def test_the_registry_away_from_the_start_and_kafka_away_later(
    broker: Broker, registry: Registry, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "WINDOW_EVENTS", 40)
    registry.up = False
    delivery, _ = start()
    push(delivery, range(100))
    assert broker.ids() == []
    registry.up = True
    until(lambda: arrived(broker, range(100)))
    broker.up = False
    push(delivery, range(100, 300))
    until(lambda: len(delivery._window) == 40)
    broker.room = 5
    broker.up = True
    until(lambda: arrived(broker, range(300)))
    push(delivery, range(300, 310))
    until(lambda: arrived(broker, range(310)))
    assert len(broker.log) == 310


def test_what_a_dead_process_left_is_sent_first(broker: Broker, start: Any) -> None:
    delivery, _ = start()
    push(delivery, range(50))
    until(lambda: delivery.waiting() == 0)
    broker.up = False
    push(delivery, range(50, 120))
    kill(delivery)
    broker.queue.clear()
    broker.up = True
    after, _ = start()
    push(after, range(120, 130))
    until(lambda: arrived(broker, range(130)))
    assert len(broker.log) == 130  # only what was not delivered was repeated: here, nothing


def test_stopping_while_kafka_is_away_keeps_everything(broker: Broker, start: Any) -> None:
    delivery, counts = start()
    broker.up = False
    push(delivery, range(20))
    assert delivery.close(0.05) == UndeliveredEvents(20, 0)
    assert counts.counted["lost"] == 0
    broker.queue.clear()
    broker.up = True
    start()
    until(lambda: arrived(broker, range(20)))


@pytest.mark.parametrize("spooled", [True, False])
def test_what_kafka_may_take_later_is_sent_again(broker: Broker, start: Any, tmp_path: Path, spooled: bool) -> None:
    delivery, counts = start(tmp_path / "spool" if spooled else None)
    tries = itertools.count()
    broker.fail = lambda event_id: (
        KafkaError.TOPIC_AUTHORIZATION_FAILED if event_id in ("7", "9") and next(tries) < 6 else None
    )
    broker.up = False  # so that what fails has something behind it
    push(delivery, range(20))
    until(lambda: len(broker.queue) == 20)
    broker.up = True
    until(lambda: delivery.waiting() == 0)
    assert sorted(set(broker.ids()), key=int) == [str(n) for n in range(20)]
    per_key = [[n for n in map(int, broker.ids()) if n % 3 == key] for key in range(3)]
    for numbers in per_key:
        # What comes again comes from there on in its order: whoever keeps the newest of each key is right.
        again = max((at for at in range(1, len(numbers)) if numbers[at] < numbers[at - 1]), default=0)
        assert numbers[again:] == list(range(numbers[again], 20, 3))
    if not spooled:
        assert per_key[2] == list(range(2, 20, 3))  # of a key that did not fail nothing comes twice
    assert counts.counted["refused"] == counts.counted["lost"] == 0


def test_what_kafka_will_never_take_becomes_a_dead_letter(broker: Broker, start: Any) -> None:
    delivery, counts = start(spool_bytes=64 * MB)
    broker.fail = lambda event_id: KafkaError.MSG_SIZE_TOO_LARGE if event_id == "1" else None
    push(delivery, range(3))
    delivery.send("steps", "t", step(event_id="huge", messages=[{"role": "user", "content": "x" * 11 * MB}]))
    until(lambda: len(broker.ids("dead-letters")) == 2)
    assert broker.ids() == ["0", "2"]
    letters = [broker.values[event_id] for event_id in broker.ids("dead-letters")]
    assert all(b"oversized" in letter and b"xxx" not in letter for letter in letters)
    assert counts.counted["refused"] == 2
    assert delivery.flush(PATIENCE_S) == 0


def test_what_does_not_fit_its_schema_is_counted_and_passed_over(
    broker: Broker, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    delivery, counts = start()
    assert delivery.send("steps", "t", step(event_id="bad", step_index="no number"))
    assert delivery.send("steps", "\ud800", step(event_id="worse"))
    push(delivery, range(2))
    until(lambda: arrived(broker, range(2)))
    assert counts.counted["refused"] == 2
    assert "event bad for steps cannot be published" in caplog.text


def test_a_full_spool_drops_the_oldest_loudly(
    broker: Broker, registry: Registry, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    registry.up = False
    delivery, counts = start()
    push(delivery, range(2000), messages=[{"role": "user", "content": "x" * 1000}])
    assert counts.counted["lost"] > 500
    assert "LOST" in caplog.text
    registry.up = True
    assert delivery.flush(PATIENCE_S) == 0
    ids = broker.ids()
    assert len(ids) + counts.counted["lost"] == 2000
    kept = list(map(int, ids))
    assert kept == sorted(kept)
    assert kept[-1] == 1999


def test_without_a_disk_events_flow_through_memory(
    broker: Broker, start: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("stepstream.delivery.backlog.REOPEN_S", 0.02)
    delivery, counts = start(tmp_path / "file" / "spool")
    push(delivery, range(10))
    until(lambda: arrived(broker, range(10)))
    assert counts.counted["unspooled"] == 10
    assert "the spool cannot be written" in caplog.text
    (tmp_path / "file").unlink()
    until(lambda: delivery._backlog.spool is not None)
    push(delivery, range(10, 20))
    until(lambda: arrived(broker, range(20)))
    assert counts.counted["unspooled"] == 10


def test_a_disk_that_comes_and_goes_keeps_the_order(
    broker: Broker, registry: Registry, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.up = False
    delivery, _ = start()
    append = Spool.append
    for turn in range(4):
        with monkeypatch.context() as patch:
            if turn % 2:
                patch.setattr(Spool, "append", lambda *_, **__: (_ for _ in ()).throw(OSError("full")))
            push(delivery, range(turn * 10, turn * 10 + 10))
    assert Spool.append is append
    registry.up = True
    until(lambda: arrived(broker, range(40)))


@pytest.mark.parametrize("drop_oldest", [True, False])
def test_memory_is_bounded(broker: Broker, registry: Registry, start: Any, drop_oldest: bool) -> None:
    registry.up = False
    delivery, counts = start(None, memory_bytes=20_000, drop_oldest=drop_oldest)
    taken = push(delivery, range(1000))
    registry.up = True
    assert delivery.flush(PATIENCE_S) == 0
    kept = list(map(int, broker.ids()))
    assert len(kept) + counts.counted["lost"] == 1000
    assert 20 < len(kept) < 200
    if drop_oldest:
        assert all(taken)
        assert kept[-1] == 999
    else:
        assert kept == [n for n, kept in enumerate(taken) if kept]


def test_what_is_larger_than_all_the_room_takes_nobody_elses(broker: Broker, registry: Registry, start: Any) -> None:
    registry.up = False
    delivery, counts = start(None, memory_bytes=20_000, drop_oldest=True)
    push(delivery, range(5))
    assert not delivery.send("feedback", "t", feedback("5", comment="x" * 30_000))
    registry.up = True
    assert delivery.flush(PATIENCE_S) == 0
    assert (broker.ids(), counts.counted["lost"]) == (list("01234"), 1)


def test_without_a_spool_what_waits_at_the_end_is_lost_and_told(
    broker: Broker, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker.up = False
    delivery, counts = start(None)
    push(delivery, range(5))
    assert delivery.close(0.05) == UndeliveredEvents(0, 5)
    assert counts.counted["lost"] == 5
    assert "5 events LOST" in caplog.text


def test_a_persons_key_is_there_before_what_is_sealed_with_it(broker: Broker, start: Any) -> None:
    key = new_subject_key(event_id="k", occurred_at_us=1, key_id="k1", tenant="t", subject="s", wrapped_key=b"w")
    delivery, _ = start()
    push(delivery, range(3))
    until(lambda: delivery.waiting() == 0)
    faults = itertools.count()
    broker.fail = lambda event_id: KafkaError.NOT_ENOUGH_REPLICAS if event_id == "k" and next(faults) < 3 else None
    assert delivery._keep_key(key)
    assert delivery.keys_waiting()
    push(delivery, range(3, 6))
    until(lambda: arrived(broker, range(6)))
    assert broker.log.index((KEYS, "k")) == 3
    assert not delivery.keys_waiting()
    broker.up = False
    delivery._keep_key(key | {"event_id": "k2"})
    push(delivery, range(6, 8))
    kill(delivery)
    broker.queue.clear()
    broker.up = True
    start()
    until(lambda: arrived(broker, range(8)))
    assert broker.log.index((KEYS, "k2")) < broker.log.index(("steps", "6"))


def test_a_schema_of_before_is_sent_as_it_was_or_translated(
    broker: Broker, registry: Registry, start: Any, tmp_path: Path
) -> None:
    spool = Spool(tmp_path / "spool", MB, lambda _: None)
    old = schema_text("Feedback")
    for number, topic_schema in enumerate((old + " ", old)):
        body = registry.body("feedback", feedback(f"f{number}"))
        spool.append(SpoolRecord("feedback", "t", f"f{number}", 1, None, topic_schema, body))
    spool.close()
    start()
    until(lambda: len(broker.ids("feedback")) == 2)
    assert broker.values["f0"][:5] == b"\0\0\0\0\2"
    assert broker.values["f1"][:5] == b"\0\0\0\0\1"


def test_a_schema_that_was_never_registered_is_translated(
    broker: Broker, registry: Registry, start: Any, tmp_path: Path
) -> None:
    old = schema_text("Feedback") + " "
    registry.unknown.add(old)
    spool = Spool(tmp_path / "spool", MB, lambda _: None)
    spool.append(SpoolRecord("feedback", "t", "f", 1, None, old, registry.body("feedback", feedback("f"))))
    spool.close()
    start()
    until(lambda: broker.ids("feedback") == ["f"])
    assert broker.values["f"] == b"\0\0\0\0\1" + registry.body("feedback", feedback("f"))


class SlowKeys:
    """Seals nothing; opening waits until `go`, and sealing takes a lock that the maker of a new key holds."""

    def __init__(self) -> None:
        self.keep_key: Callable[[SubjectKey], bool] = lambda _: True
        self.ring = threading.RLock()
        self.asked, self.go = threading.Event(), threading.Event()

    def seal(self, topic: str, record: Any) -> Any:
        if not self.ring.acquire(timeout=PATIENCE_S):
            raise KeysUnavailable("the ring is held")
        try:
            of = {"occurred_at_us": 1, "key_id": "k", "tenant": "t", "subject": "s", "wrapped_key": b"w"}
            self.keep_key(new_subject_key(event_id=f"key-{record['event_id']}", **of))  # type: ignore[arg-type]
        finally:
            self.ring.release()
        return record

    def open(self, topic: str, writer: Any, record: Any) -> Any:
        self.asked.set()
        if not self.go.wait(PATIENCE_S):
            raise KeysUnavailable("no key in time")
        return record

    def close(self) -> None:
        pass


def in_time(call: Callable[[], object]) -> None:
    """Calls it in another thread; it must return long before the waits of `SlowKeys` end."""
    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(PATIENCE_S)
    assert not caller.is_alive(), "delivery keeps its caller waiting for a key"


def test_what_waits_for_a_persons_key_keeps_no_caller_waiting(broker: Broker, tmp_path: Path) -> None:
    keys = SlowKeys()
    registry = Registry(keys)
    old = schema_text("Feedback") + " "
    registry.unknown.add(old)
    sealed = registry.body("feedback", feedback("f", user="ada", seal_key="k", sealed=b"s"))
    spool = Spool(tmp_path / "spool", MB, lambda _: None)
    spool.append(SpoolRecord("feedback", "t", "f", 1, None, old, sealed))
    spool.close()

    def make_codec(keep_key: Callable[[SubjectKey], bool]) -> Codec:
        keys.keep_key = keep_key
        return registry

    delivery = SpooledProducer(
        KafkaSettings(), make_codec, "test/1", Counts(), BacklogLimits(tmp_path / "spool", MB, MB)
    )

    def meet() -> None:
        with keys.ring:  # as one who makes a key does; what waits is translated meanwhile and wants the ring too
            keys.go.set()
            delivery.send("steps", "t", step(event_id="1", user="bob"))

    try:
        assert keys.asked.wait(PATIENCE_S)
        in_time(lambda: delivery.send("steps", "t", step(event_id="0")))
        in_time(meet)
        assert delivery.flush(PATIENCE_S) == 0
    finally:
        keys.go.set()
        in_time(lambda: delivery.close(2))
    assert broker.ids("feedback") == ["f"]
    assert broker.log.index((KEYS, "key-f")) < broker.log.index(("feedback", "f"))
    assert broker.log.index((KEYS, "key-1")) < broker.log.index(("steps", "1"))
    assert broker.ids() == ["0", "1"]


def test_what_cannot_be_translated_is_counted_and_passed_over(
    broker: Broker, registry: Registry, start: Any, tmp_path: Path
) -> None:
    old = schema_text("Feedback") + " "
    registry.unknown.add(old)
    spool = Spool(tmp_path / "spool", MB, lambda _: None)
    for number, body in enumerate((b"\xff", registry.body("feedback", feedback("1")))):
        spool.append(SpoolRecord("feedback", "t", str(number), 1, None, old, body))
    spool.close()
    delivery, counts = start()
    until(lambda: broker.ids("feedback") == ["1"])
    assert delivery.flush(PATIENCE_S) == 0
    assert counts.counted["refused"] == 1
    assert delivery.close(5) == UndeliveredEvents(0, 0)
