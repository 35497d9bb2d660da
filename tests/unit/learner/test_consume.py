"""The topic is read and decoded in a thread of its own, ahead of the learner and within a bound."""

import threading
from typing import Any

import pytest
from labelled_records import LIMITS, labelled
from service_process import until

from stepstream.config.sections import Kafka
from stepstream.learner import consume
from stepstream.learner.consume import Reader, arrival_of
from stepstream.topics.consumer import Event


class Scripted:
    """A consumer that has a record for every poll, and notes who polls."""

    made: "Scripted"

    def __init__(self, *_: Any) -> None:
        Scripted.made = self
        self.polled = 0
        self.threads: set[str] = set()

    def follow(self, *_: Any) -> None: ...

    def close(self) -> None: ...

    def poll(self, most: int, timeout_s: float) -> list[Event]:
        self.threads.add(threading.current_thread().name)
        self.polled += 1
        record = labelled("g", self.polled, 1.0)
        return [Event("labeled-trajectories", 0, self.polled - 1, "g", record)]


def test_records_are_decoded_while_the_learner_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded_by: set[str] = set()

    def noted(event: Event, limits: Any) -> Any:
        decoded_by.add(threading.current_thread().name)
        return arrival_of(event, limits)

    monkeypatch.setattr(consume, "EventConsumer", Scripted)
    monkeypatch.setattr(consume, "arrival_of", noted)
    reader = Reader(Kafka(), None, LIMITS, {})  # type: ignore[arg-type]
    try:
        # The learner asks for nothing, as while it trains; yet the thread reads on, until it is far enough ahead.
        until(lambda: Scripted.made.polled == consume._BATCHES_AHEAD + 1)
        assert Scripted.made.threads == decoded_by == {"reader"}
        offsets = [arrival.place[1] for _ in range(consume._BATCHES_AHEAD) for arrival in reader.next(0.0)]
        assert offsets == list(range(consume._BATCHES_AHEAD))
        until(lambda: Scripted.made.polled > consume._BATCHES_AHEAD + 1)
    finally:
        reader.close()


def test_what_ends_the_reading_is_told_to_whoever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Scripted):
        def poll(self, most: int, timeout_s: float) -> list[Event]:
            raise OSError("no such topic")

    monkeypatch.setattr(consume, "EventConsumer", Broken)
    reader = Reader(Kafka(), None, LIMITS, {})  # type: ignore[arg-type]
    with pytest.raises(OSError, match="no such topic"):
        until(lambda: bool(reader.next(0.1)))
    reader.close()
