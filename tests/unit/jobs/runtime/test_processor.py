"""A job that is killed at any point, with or without its state, has the same effect."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fold_harness import LocalCodec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stream_records import as_governed, make_ending, make_feedback, make_steps

from stepstream.config import JobsSettings, Settings
from stepstream.jobs import label
from stepstream.jobs.label import Label
from stepstream.jobs.runtime import processor
from stepstream.jobs.runtime.outputs import Output
from stepstream.jobs.runtime.processor import FoldProcessor
from stepstream.jobs.runtime.record import Record
from stepstream.topics.events import new_trajectory_closed

STEPS, FEEDBACK, LABELS = "governed-steps", "governed-feedback", "labeled-trajectories"


class Killed(Exception):
    """The process was killed."""


class Log:
    """One partition of every topic, and the group's committed offsets."""

    def __init__(self) -> None:
        self.topics: dict[str, list[Record]] = {}
        self.offsets: dict[str, int] = {}

    def append(self, topic: str, key: str, value: bytes) -> None:
        records = self.topics.setdefault(topic, [])
        records.append(Record(topic, 0, len(records), 1_760_000_100_000 + len(records), key.encode(), value))

    def events(self, topic: str) -> list[Any]:
        return [LocalCodec().decode(topic, record.value) for record in self.topics.get(topic, [])]


class Reader:
    """`LogReader` over a `Log`."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def identity(self, _topics: Sequence[str]) -> str:
        return "log"

    def committed(self, topics: Sequence[str], _partition: int) -> dict[str, int]:
        return {topic: self.log.offsets[topic] for topic in topics if topic in self.log.offsets}

    def bounds(self, topic: str, _partition: int) -> tuple[int, int]:
        return 0, len(self.log.topics.get(topic, []))

    def since(self, topic: str, _timestamp_ms: int) -> dict[tuple[str, int], tuple[int, int]]:
        return {(topic, 0): self.bounds(topic, 0)}

    def read(self, stretches: Mapping[tuple[str, int], tuple[int, int]]) -> Iterator[list[Record]]:
        for (topic, _), (begin, end) in stretches.items():
            yield self.log.topics.get(topic, [])[begin:end]

    def partition_of(self, _topic: str, _key: str) -> int:
        return 0

    def close(self) -> None:
        pass


class Publisher:
    """`Publisher` into a `Log` that can die: before the first output, in the middle, or after the last."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.dies_after: float | None = None
        """Share of the outputs that are published before it dies; None: it does not die."""

    def publish(self, outputs: Sequence[Output]) -> None:
        survive = len(outputs) if self.dies_after is None else int(self.dies_after * len(outputs))
        for output in outputs[:survive]:
            self.log.append(output.topic, output.key, output.value)
        if self.dies_after is not None:
            self.dies_after = None
            raise Killed


class Worker:
    """The label job over a log; it can be restarted."""

    def __init__(self, log: Log, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log, self.folder = log, folder
        self.publisher = Publisher(log)
        monkeypatch.setattr(processor, "sealing_codec", lambda _: LocalCodec())
        monkeypatch.setattr(label, "sealing_codec", lambda _: LocalCodec())
        monkeypatch.setattr(processor, "Publisher", lambda *_: self.publisher)
        monkeypatch.setattr(processor, "LogReader", lambda *_: Reader(log))
        self.processor = self.start()

    def start(self) -> FoldProcessor:
        configured = Settings(jobs=JobsSettings(state=self.folder))
        processor = FoldProcessor(configured, Label(configured), lambda: False)
        processor.open([0])
        return processor

    def restart(self, *, without_state: bool) -> None:
        self.processor.shut_down()
        if without_state:
            self.folder = self.folder.with_name(self.folder.name + "+")
        self.processor = self.start()

    def deliver(self, begin: Mapping[str, int], most: int) -> dict[str, int]:
        """Processes a batch from the given offsets on; returns the offsets after it."""
        batch: list[Record] = []
        for topic in (STEPS, FEEDBACK):
            batch += self.log.topics.get(topic, [])[begin.get(topic, 0) :][:most]
        self.processor.process(batch)
        return dict(begin) | {record.topic: record.offset + 1 for record in batch}


def fill(log: Log, order: Callable[[list[tuple[str, Any]]], list[tuple[str, Any]]]) -> None:
    events: list[tuple[str, Any]] = []
    for name in ("a", "b", "c"):
        events += [(STEPS, step) for step in make_steps(name, 2)]
        events += [(FEEDBACK, make_ending(name, 2)), (FEEDBACK, make_feedback(name, 0.0, number=1))]
    for topic, event in order(events):
        log.append(topic, event["trajectory_id"], LocalCodec().encode(topic, as_governed(event)))


NUMBERS = count()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_job_that_is_killed_anywhere_has_the_same_effect(
    data: st.DataObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    fill(log, lambda events: data.draw(st.permutations(events)))
    worker = Worker(log, tmp_path / f"state-{next(NUMBERS)}", monkeypatch)
    reached: dict[str, int] = {}
    lives = data.draw(st.integers(0, 5))
    while any(reached.get(topic, 0) < len(log.topics[topic]) for topic in (STEPS, FEEDBACK)):
        kill = data.draw(st.sampled_from(["", "publishing", "uncommitted"])) if lives else ""
        worker.publisher.dies_after = data.draw(st.sampled_from([0.0, 0.5, 1.0])) if kill == "publishing" else None
        try:
            after = worker.deliver(reached, data.draw(st.integers(1, 4)))
        except Killed:
            after = reached
        worker.publisher.dies_after = None
        if not kill:
            reached = after
            log.offsets = dict(after)
            continue
        lives -= 1
        worker.restart(without_state=data.draw(st.booleans()))
        reached = dict(log.offsets)
    labels = log.events(LABELS)
    newest: dict[Any, Any] = {}
    for one in labels:
        if one["revision"] >= newest.get(one["trajectory_id"], one)["revision"]:
            newest[one["trajectory_id"]] = one
    expected = dict.fromkeys(("a", "b", "c"), (False, True))
    assert {name: (one["success"], one["complete"]) for name, one in newest.items()} == expected
    # Copies of an event are equal.
    for one in labels:
        same = [other for other in labels if other["event_id"] == one["event_id"]]
        assert all(other == one for other in same)
    worker.processor.shut_down()


def test_a_flood_of_invalid_records_from_one_tenant_does_not_stop_other_tenants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, flood = Log(), 1_100
    fill(log, lambda events: events)
    worker = Worker(log, tmp_path / "state", monkeypatch)
    reached = worker.deliver({}, 2)
    for number in range(flood):
        foreign = as_governed(make_feedback("a", number=number) | {"tenant": "noisy"})
        log.append(FEEDBACK, "a", LocalCodec().encode(FEEDBACK, foreign))
        guessed: dict[str, Any] = {
            "trajectory_id": f"guessed-{number}",
            "reason": "idle",
            "last_step_index": -1,
            "job": "label@1",
        }
        closed = new_trajectory_closed(event_id=f"{number}", occurred_at_us=0, **guessed)
        log.append("closures", closed["trajectory_id"], LocalCodec().encode("closures", closed))
    worker.processor.process(log.topics["closures"])
    worker.deliver(reached, 2 * flood)
    assert len(log.events("dead-letters")) == 2 * flood
    assert {one["trajectory_id"] for one in log.events(LABELS) if one["complete"]} == {"a", "b", "c"}
    worker.processor.shut_down()


def test_records_that_faust_did_not_deliver_are_read_from_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    fill(log, lambda events: events)
    worker = Worker(log, tmp_path / "state", monkeypatch)
    worker.processor.process(log.topics[FEEDBACK])
    worker.processor.process(log.topics[STEPS][3:])
    assert {one["trajectory_id"] for one in log.events(LABELS)} == {"a", "b", "c"}
    worker.processor.process(log.topics[STEPS])
    assert len(log.events(LABELS)) == 3
    worker.processor.shut_down()
