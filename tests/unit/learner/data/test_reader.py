"""Check that the reader decodes records in a thread, ahead of the learner and within a bound."""

import threading
from typing import Any

import pytest
from labelled_records import LIMITS, labelled
from prometheus_client import REGISTRY
from waiting import TIMEOUT_S, wait_until

from stepstream.config import KafkaSettings
from stepstream.learner.data import reader
from stepstream.learner.data.reader import Reader, arrival_of
from stepstream.topics.consumer import Event


class Scripted:
    """A consumer that has a record for every poll, and notes who polls."""

    made: "Scripted"

    def __init__(self, *_: Any) -> None:
        Scripted.made = self
        self.polled = 0
        self.threads: set[str] = set()

    def follow(self, *_: Any) -> None: ...

    def has_records_beyond(self, _handled: dict[tuple[str, int], int]) -> bool:
        return True

    def close(self) -> None: ...

    def poll(self, most: int, timeout_s: float) -> list[Event]:
        self.threads.add(threading.current_thread().name)
        self.polled += 1
        record = labelled("g", self.polled, 1.0)
        return [Event("labeled-trajectories", 0, self.polled - 1, "g", record)]


def test_an_invalid_record_reaches_its_group_and_becomes_a_dead_letter() -> None:
    """Its group does not wait for it, and its decision can be looked up."""
    cases: list[tuple[dict[str, Any], str]] = [({}, "invalid"), ({"model": "another"}, "other_model")]
    for fields, why in cases:
        record = labelled("g", 1, float("nan"), revision=3, tenant="shop", **fields)
        arrival = arrival_of(Event("labeled-trajectories", 2, 5, "g", record), LIMITS)
        assert arrival.dead_letter is not None
        assert (arrival.dead_letter["error"], arrival.dead_letter["offset"]) == ("invalid", 5)
        attempt = arrival.attempt
        assert attempt is not None
        assert (attempt.untrainable, attempt.trajectory_id, attempt.revision, attempt.group_id) == (why, "g/1", 3, "g")
        assert (attempt.position, attempt.tenant, attempt.sequences) == ((2, 5), "shop", ())


def test_reading_waits_while_too_many_bytes_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "EventConsumer", Scripted)
    batches = Reader(KafkaSettings(), None, LIMITS, {}, most_bytes=1)  # type: ignore[arg-type]
    try:
        for taken in range(1, 6):
            assert batches.next(TIMEOUT_S)
            assert Scripted.made.polled <= taken + 1
    finally:
        batches.close()


def test_records_are_decoded_while_the_learner_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded_by: set[str] = set()

    def decode_noting_thread(event: Event, limits: Any) -> Any:
        decoded_by.add(threading.current_thread().name)
        return arrival_of(event, limits)

    monkeypatch.setattr(reader, "EventConsumer", Scripted)
    monkeypatch.setattr(reader, "arrival_of", decode_noting_thread)

    def spent() -> float:
        return REGISTRY.get_sample_value("stepstream_learner_reader_cpu_seconds_total") or 0.0

    before = spent()
    batches = Reader(KafkaSettings(), None, LIMITS, {})  # type: ignore[arg-type]
    try:
        # The learner asks for nothing, as while it trains; yet the thread reads on, until it is far enough ahead.
        wait_until(lambda: Scripted.made.polled == reader._BATCHES_AHEAD + 1)
        assert Scripted.made.threads == decoded_by == {"reader"}
        offsets = [arrival.position[1] for _ in range(reader._BATCHES_AHEAD) for arrival in batches.next(0.0)]
        assert offsets == list(range(reader._BATCHES_AHEAD))
        wait_until(lambda: Scripted.made.polled > reader._BATCHES_AHEAD + 1)
        assert spent() > before
    finally:
        batches.close()


def test_the_reader_is_behind_until_all_records_were_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three records are in the log; the second is decoded only when the learner says so."""
    go_on = threading.Event()

    class Short(Scripted):
        def poll(self, most: int, timeout_s: float) -> list[Event]:
            return super().poll(most, timeout_s) if self.polled < 3 else []

        def has_records_beyond(self, handled: dict[tuple[str, int], int]) -> bool:
            return handled.get(("labeled-trajectories", 0), 0) < 3

    def decode_late(event: Event, limits: Any) -> Any:
        assert event.offset == 0 or go_on.wait(TIMEOUT_S)
        return arrival_of(event, limits)

    monkeypatch.setattr(reader, "EventConsumer", Short)
    monkeypatch.setattr(reader, "arrival_of", decode_late)
    batches = Reader(KafkaSettings(), None, LIMITS, {})  # type: ignore[arg-type]
    try:
        assert len(batches.next(60.0)) == 1
        assert not batches.next(0.0)
        assert batches.is_behind()  # polled, but not decoded
        go_on.set()
        wait_until(lambda: not batches.is_behind())
        assert len(batches.next(0.0)) == len(batches.next(0.0)) == 1
    finally:
        go_on.set()
        batches.close()


def test_a_fault_of_the_thread_is_raised_in_next(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Scripted):
        def poll(self, most: int, timeout_s: float) -> list[Event]:
            raise OSError("no such topic")

    monkeypatch.setattr(reader, "EventConsumer", Broken)
    batches = Reader(KafkaSettings(), None, LIMITS, {})  # type: ignore[arg-type]
    with pytest.raises(OSError, match="no such topic"):
        wait_until(lambda: bool(batches.next(0.1)))
    batches.close()
