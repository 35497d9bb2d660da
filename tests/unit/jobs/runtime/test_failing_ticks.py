"""A tick at which a fold raises is dropped and tried again later; the worker and the other partitions go on."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from owner_model import CODEC, DAY_MS, Log, Worker
from prometheus_client import REGISTRY
from stream_records import as_governed, make_ending, make_steps

from stepstream.core.process import Fatal
from stepstream.jobs import label
from stepstream.jobs.label import Label
from stepstream.jobs.labels.fold import LabelFold
from stepstream.jobs.runtime import ticks

STEPS, FEEDBACK, LABELS, CLOSURES = "governed-steps", "governed-feedback", "labeled-trajectories", "closures"
POISON, SOUND = "b", "a"
"""Two idle trajectories, in two partitions."""


class Bug:
    """Raises at the end of a tick that closes the trajectory `POISON`."""

    def __init__(self) -> None:
        self.error: Exception | None = RuntimeError("content of a record")
        self.raised = 0


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0


@pytest.fixture
def bug(monkeypatch: pytest.MonkeyPatch) -> Bug:
    bug, tick = Bug(), LabelFold.tick

    def broken_tick(fold: LabelFold, now_ms: int, changes: Any, out: Any) -> None:
        tick(fold, now_ms, changes, out)
        if bug.error is not None and any(output.key == POISON for output in out.events):
            bug.raised += 1
            raise type(bug.error)(*bug.error.args)

    monkeypatch.setattr(LabelFold, "tick", broken_tick)
    return bug


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(ticks, "monotonic", lambda: clock.now_s)
    return clock


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(label, "sealing_codec", lambda _, **__: CODEC)
    worker = Worker("one", Log(2), tmp_path, Label)
    worker.own()
    for name in (POISON, SOUND):
        for step in make_steps(name, 2):
            append(worker.log, STEPS, step)
    worker.log.now_ms += DAY_MS
    deliver_all(worker)
    yield worker
    worker.kill()


def append(log: Log, topic: str, event: Any) -> None:
    log.append(topic, event["trajectory_id"], CODEC.encode(topic, as_governed(event)))


def deliver_all(worker: Worker) -> None:
    while worker.deliver(1_000):
        pass


def tick(worker: Worker) -> None:
    assert worker.processor is not None
    worker.processor.tick()


def closed(log: Log) -> list[str]:
    return [event["trajectory_id"] for event in log.events(CLOSURES)]


def failures() -> float:
    return REGISTRY.get_sample_value("stepstream_job_failed_ticks_total") or 0.0


@pytest.mark.usefixtures("clock")
def test_a_failing_tick_has_no_effect_and_other_partitions_go_on(
    worker: Worker, bug: Bug, caplog: pytest.LogCaptureFixture
) -> None:
    before = failures()
    tick(worker)
    assert (closed(worker.log), bug.raised, failures() - before) == ([SOUND], 1, 1)
    assert "RuntimeError" in caplog.text
    assert "content of a record" not in caplog.text
    append(worker.log, FEEDBACK, make_ending(POISON, 2))
    deliver_all(worker)
    tick(worker)
    assert POISON in {event["trajectory_id"] for event in worker.log.events(LABELS)}


def test_a_failing_tick_is_tried_again_after_growing_pauses(worker: Worker, bug: Bug, clock: Clock) -> None:
    attempts = []
    for second in range(100):
        clock.now_s = second
        before = bug.raised
        tick(worker)
        attempts += [second] * (bug.raised - before)
    pauses = [after - before for before, after in pairwise(attempts)]
    assert len(pauses) >= 3
    assert all(before < after for before, after in pairwise(pauses))
    clock.now_s, bug.error = 1_000.0, None
    tick(worker)
    tick(worker)
    assert sorted(closed(worker.log)) == [SOUND, POISON]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("error", [Fatal("fault"), OSError("disk"), Exception("RocksDB")])
def test_a_fault_that_is_not_the_folds_ends_the_worker(worker: Worker, bug: Bug, error: Exception) -> None:
    bug.error = error
    with pytest.raises(type(error)):
        tick(worker)
    assert closed(worker.log) == []


def test_a_fold_that_cannot_tell_whether_it_is_due_is_asked_again_later(
    worker: Worker, bug: Bug, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug.error = None
    due = LabelFold.due
    raised: list[LabelFold] = []

    def broken_due(fold: LabelFold, now_ms: int) -> bool:
        if not raised:
            raised.append(fold)
            raise RuntimeError("content of a policy")
        return due(fold, now_ms)

    monkeypatch.setattr(LabelFold, "due", broken_due)
    tick(worker)
    assert len(closed(worker.log)) == 1
    clock.now_s = 10.0
    tick(worker)
    assert sorted(closed(worker.log)) == [SOUND, POISON]
