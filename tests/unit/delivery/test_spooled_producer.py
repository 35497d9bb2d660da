"""Spooled producers deliver in order and count every loss, through all failures of Kafka, registry and disk."""

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from sample_records import feedback, step
from scripted_kafka import ScriptedKafka, ScriptedRegistry
from waiting import TIMEOUT_S, wait_until

from stepstream.config import LargeRecordsSettings, PathsSettings, Settings
from stepstream.crypto.key_ring import Sealer
from stepstream.delivery import sender
from stepstream.delivery.spool import Spool
from stepstream.delivery.spooled_producer import SpooledProducer, UndeliveredEvents
from stepstream.topics.catalogue import SUBJECT_KEYS
from stepstream.topics.events import new_subject_key

MB = 1024 * 1024


def send(producer: SpooledProducer, numbers: range, **fields: Any) -> list[bool]:
    return [
        producer.send("steps", f"t{n % 3}", step(f"t{n % 3}", n, event_id=str(n), **fields), {"traceparent": str(n)})
        for n in numbers
    ]


def has_arrived(kafka: ScriptedKafka, numbers: range) -> bool:
    return list(dict.fromkeys(kafka.ids())) == [str(n) for n in numbers]


def kill(producer: SpooledProducer) -> None:
    """Stop a producer as kill -9 does: files unchanged, locks released."""
    producer._stopping.set()
    producer._thread.join()
    spool = producer._backlog.spool
    assert spool is not None
    for segment in spool._segments.values():
        segment.close()
    os.close(spool._lock)
    producer._backlog.spool = None


def test_events_arrive_in_order_and_leave_the_disk(kafka: ScriptedKafka, start: Any, tmp_path: Path) -> None:
    producer, counts = start()
    assert all(send(producer, range(500)))
    assert producer.flush(TIMEOUT_S) == 0
    assert has_arrived(kafka, range(500))
    assert producer.close(5) == UndeliveredEvents(0, 0)
    assert (counts.delivered, counts.rejected, counts.dropped, counts.unspooled) == (500, 0, 0, 0)
    assert not list(tmp_path.rglob("*.spool"))


def test_events_keep_their_order_while_registry_and_kafka_are_down(
    kafka: ScriptedKafka, registry: ScriptedRegistry, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "WINDOW_EVENTS", 40)
    registry.is_up = False
    producer, _ = start()
    send(producer, range(100))
    assert kafka.ids() == []
    registry.is_up = True
    wait_until(lambda: has_arrived(kafka, range(100)))
    kafka.is_up = False
    send(producer, range(100, 300))
    wait_until(lambda: len(producer._window) == 40)
    kafka.client_capacity = 5
    kafka.is_up = True
    wait_until(lambda: has_arrived(kafka, range(300)))
    send(producer, range(300, 310))
    wait_until(lambda: has_arrived(kafka, range(310)))
    assert len(kafka.log) == 310


def test_events_of_a_killed_process_are_sent_first(kafka: ScriptedKafka, start: Any) -> None:
    killed, _ = start()
    send(killed, range(50))
    wait_until(lambda: killed.unacknowledged() == 0)
    kafka.is_up = False
    send(killed, range(50, 120))
    kill(killed)
    kafka.queue.clear()
    kafka.is_up = True
    producer, _ = start()
    send(producer, range(120, 130))
    wait_until(lambda: has_arrived(kafka, range(130)))
    assert len(kafka.log) == 130  # delivered events are not repeated


def test_close_leaves_undelivered_events_on_disk(kafka: ScriptedKafka, start: Any) -> None:
    producer, counts = start()
    kafka.is_up = False
    send(producer, range(20))
    assert producer.close(0.05) == UndeliveredEvents(20, 0)
    assert counts.dropped == 0
    kafka.queue.clear()
    kafka.is_up = True
    start()
    wait_until(lambda: has_arrived(kafka, range(20)))


def test_close_without_a_spool_drops_and_logs_undelivered_events(
    kafka: ScriptedKafka, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.is_up = False
    producer, counts = start(None)
    send(producer, range(5))
    assert producer.close(0.05) == UndeliveredEvents(0, 5)
    assert counts.dropped == 5
    assert "dropped 5 events" in caplog.text


@pytest.mark.parametrize("is_spooled", [True, False])
def test_events_are_sent_again_after_temporary_errors(
    kafka: ScriptedKafka, start: Any, tmp_path: Path, is_spooled: bool
) -> None:
    producer, counts = start(tmp_path / "spool" if is_spooled else None)
    tries = itertools.count()
    kafka.fail = lambda event_id: (
        KafkaError.TOPIC_AUTHORIZATION_FAILED if event_id in ("7", "9") and next(tries) < 6 else None
    )
    kafka.is_up = False  # so that later events follow the failing ones
    send(producer, range(20))
    wait_until(lambda: len(kafka.queue) == 20)
    kafka.is_up = True
    wait_until(lambda: producer.unacknowledged() == 0)
    assert sorted(set(kafka.ids()), key=int) == [str(n) for n in range(20)]
    per_key = [[n for n in map(int, kafka.ids()) if n % 3 == key] for key in range(3)]
    for numbers in per_key:
        # After the last repetition every event of the key follows in order, so its newest event is the last one.
        restart = max((at for at in range(1, len(numbers)) if numbers[at] < numbers[at - 1]), default=0)
        assert numbers[restart:] == list(range(numbers[restart], 20, 3))
    if not is_spooled:
        assert per_key[2] == list(range(2, 20, 3))  # the key without a failure repeats nothing
    assert counts.rejected == counts.dropped == 0


def test_permanent_errors_become_dead_letters(kafka: ScriptedKafka, start: Any) -> None:
    producer, counts = start(spool_bytes=64 * MB)
    kafka.fail = lambda event_id: KafkaError.MSG_SIZE_TOO_LARGE if event_id == "1" else None
    send(producer, range(3), tenant="acme")
    content = "x" * 11 * MB
    producer.send("steps", "t", step(event_id="huge", tenant="acme", messages=[{"role": "user", "content": content}]))
    wait_until(lambda: len(kafka.ids("dead-letters")) == 2)
    assert kafka.ids() == ["0", "2"]
    letters = [kafka.values[event_id] for event_id in kafka.ids("dead-letters")]
    assert all(b"oversized" in letter and b"acme" in letter and b"xxx" not in letter for letter in letters)
    assert counts.rejected == 2
    assert producer.flush(TIMEOUT_S) == 0


def test_invalid_events_are_rejected_and_skipped(
    kafka: ScriptedKafka, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    producer, counts = start()
    assert producer.send("steps", "t", step(event_id="bad", step_index="no number"))
    assert producer.send("steps", "\ud800", step(event_id="worse"))
    send(producer, range(2))
    wait_until(lambda: has_arrived(kafka, range(2)))
    assert counts.rejected == 2
    assert "rejected event bad for steps" in caplog.text


def test_a_full_spool_drops_and_logs_the_oldest_events(
    kafka: ScriptedKafka, registry: ScriptedRegistry, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    registry.is_up = False
    producer, counts = start()
    send(producer, range(2000), messages=[{"role": "user", "content": "x" * 1000}])
    assert counts.dropped > 500
    assert "dropped the oldest segment" in caplog.text
    registry.is_up = True
    assert producer.flush(TIMEOUT_S) == 0
    delivered = list(map(int, kafka.ids()))
    assert len(delivered) + counts.dropped == 2000
    assert delivered == sorted(delivered)
    assert delivered[-1] == 1999


def test_events_pass_through_memory_until_the_spool_opens(
    kafka: ScriptedKafka,
    start: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("stepstream.delivery.backlog.REOPEN_S", 0.02)
    producer, counts = start(tmp_path / "file" / "spool")
    send(producer, range(10))
    wait_until(lambda: has_arrived(kafka, range(10)))
    assert counts.unspooled == 10
    assert "cannot write the spool" in caplog.text
    (tmp_path / "file").unlink()
    wait_until(lambda: producer._backlog.spool is not None)
    send(producer, range(10, 20))
    wait_until(lambda: has_arrived(kafka, range(20)))
    assert counts.unspooled == 10


def test_events_keep_their_order_when_the_disk_fails_repeatedly(
    kafka: ScriptedKafka, registry: ScriptedRegistry, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.is_up = False
    producer, _ = start()
    append = Spool.append
    for turn in range(4):
        with monkeypatch.context() as patch:
            if turn % 2:
                patch.setattr(Spool, "append", lambda *_, **__: (_ for _ in ()).throw(OSError("full")))
            send(producer, range(turn * 10, turn * 10 + 10))
    assert Spool.append is append
    registry.is_up = True
    wait_until(lambda: has_arrived(kafka, range(40)))


@pytest.mark.parametrize("drop_oldest", [True, False])
def test_full_memory_drops_the_oldest_or_the_new_event(
    kafka: ScriptedKafka, registry: ScriptedRegistry, start: Any, drop_oldest: bool
) -> None:
    registry.is_up = False
    producer, counts = start(None, memory_bytes=20_000, drop_oldest=drop_oldest)
    accepted = send(producer, range(1000))
    registry.is_up = True
    assert producer.flush(TIMEOUT_S) == 0
    delivered = list(map(int, kafka.ids()))
    assert len(delivered) + counts.dropped == 1000
    assert 20 < len(delivered) < 200
    if drop_oldest:
        assert all(accepted)
        assert delivered[-1] == 999
    else:
        assert delivered == [n for n, is_accepted in enumerate(accepted) if is_accepted]


def test_an_event_larger_than_memory_drops_no_other(
    kafka: ScriptedKafka, registry: ScriptedRegistry, start: Any
) -> None:
    registry.is_up = False
    producer, counts = start(None, memory_bytes=20_000, drop_oldest=True)
    send(producer, range(5))
    assert not producer.send("feedback", "t", feedback("5", comment="x" * 30_000))
    registry.is_up = True
    assert producer.flush(TIMEOUT_S) == 0
    assert (kafka.ids(), counts.dropped) == (list("01234"), 1)


def test_the_key_of_a_person_arrives_before_later_events(kafka: ScriptedKafka, start: Any) -> None:
    key = new_subject_key(event_id="k", occurred_at_us=1, key_id="k1", tenant="t", subject="s", wrapped_key=b"w")
    producer, _ = start()
    send(producer, range(3))
    wait_until(lambda: producer.unacknowledged() == 0)
    failures = itertools.count()
    kafka.fail = lambda event_id: KafkaError.NOT_ENOUGH_REPLICAS if event_id == "k" and next(failures) < 3 else None
    assert producer._send_subject_key(key)
    assert producer.has_pending_keys()
    send(producer, range(3, 6))
    wait_until(lambda: has_arrived(kafka, range(6)))
    assert kafka.log.index((SUBJECT_KEYS, "k")) == 3
    assert not producer.has_pending_keys()
    kafka.is_up = False
    producer._send_subject_key(key | {"event_id": "k2"})
    send(producer, range(6, 8))
    kill(producer)
    kafka.queue.clear()
    kafka.is_up = True
    start()
    wait_until(lambda: has_arrived(kafka, range(8)))
    assert kafka.log.index((SUBJECT_KEYS, "k2")) < kafka.log.index(("steps", "6"))


@pytest.mark.parametrize("is_spooled", [True, False])
def test_a_large_event_waits_for_the_store_and_keeps_its_place(
    kafka: ScriptedKafka, start: Any, registry: ScriptedRegistry, tmp_path: Path, is_spooled: bool
) -> None:
    sealer = Sealer(Settings(paths=PathsSettings(data=tmp_path)), make_master=False)
    registry._sealing, store = sealer, tmp_path / "large-records"
    store.write_text("not a folder yet")
    producer, counts = start(tmp_path / "spool" if is_spooled else None, spool_bytes=64 * MB, memory_bytes=64 * MB)
    send(producer, range(3))
    wait_until(lambda: len(kafka.ids()) == 3)
    send(producer, range(3, 4), messages=[{"role": "user", "content": "x" * 2 * MB}])
    send(producer, range(4, 7))
    assert producer.flush(0.1) == 4
    store.unlink()
    wait_until(lambda: len(kafka.ids()) == 7)
    assert has_arrived(kafka, range(7))
    assert len(kafka.values["3"]) < 10_000
    assert len([path for path in store.rglob("*") if path.is_file()]) == 1
    assert counts.rejected == counts.dropped == 0


def test_an_event_too_large_for_the_store_is_a_dead_letter(
    kafka: ScriptedKafka, start: Any, registry: ScriptedRegistry, tmp_path: Path
) -> None:
    settings = Settings(paths=PathsSettings(data=tmp_path), large_records=LargeRecordsSettings(max_mb=1))
    registry._sealing = Sealer(settings, make_master=False)
    producer, counts = start(spool_bytes=64 * MB)
    send(producer, range(1), tenant="acme", messages=[{"role": "user", "content": "x" * 2 * MB}])
    send(producer, range(1, 2))
    wait_until(lambda: kafka.ids("dead-letters") != [] and kafka.ids() == ["1"])
    assert counts.rejected == 1
    [letter] = [kafka.values[event_id] for event_id in kafka.ids("dead-letters")]
    assert b"oversized" in letter
    assert b"acme" in letter
    assert b"xxx" not in letter
