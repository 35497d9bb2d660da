"""Test that a decision is neither lost nor published twice if the transaction of a tick or what follows it fails.

These are schedules of `owner_schedules.py` that are too rare for its seeds.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from owner_decisions import Decisions
from owner_model import CODEC, Killed, Log, Worker
from stream_records import as_governed, make_ending, make_steps

from stepstream.jobs import label
from stepstream.jobs.runtime.retry import Cancelled
from stepstream.topics.events import Consent

USER = "user-a"


@pytest.fixture
def decisions() -> Decisions:
    return Decisions()


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decisions: Decisions) -> Iterator[Worker]:
    """A worker that has published one label."""
    monkeypatch.setattr(label, "sealing_codec", lambda _, **__: CODEC)
    worker = Worker("one", Log(), tmp_path, decisions.make_label)
    worker.own()
    for step in make_steps("a", 2, user=USER):
        worker.log.append("governed-steps", "a", CODEC.encode("governed-steps", as_governed(step)))
    ending = as_governed(make_ending("a", 2))
    worker.log.append("governed-feedback", "a", CODEC.encode("governed-feedback", ending))
    deliver_all(worker)
    yield worker
    worker.kill()


def deliver_all(worker: Worker) -> None:
    while worker.deliver(1_000):
        pass


def decide(decisions: Decisions, user: str, consent: Consent) -> None:
    decisions.set_consent(user, consent)
    decisions.read_all()


def tick(worker: Worker) -> None:
    assert worker.processor is not None
    worker.processor.tick()


def fail_at(point: str, error: type[Exception]) -> Callable[[str], None]:
    def interrupt(reached: str) -> None:
        if reached == point:
            raise error

    return interrupt


def labels(worker: Worker) -> list[tuple[int, Consent]]:
    return [(one["revision"], one["consent"]) for one in worker.log.events("labeled-trajectories")]


def test_a_tick_that_was_committed_and_not_written_is_counted(worker: Worker, decisions: Decisions) -> None:
    """Its decision is read back, though no input advanced, so that the opposite decision revises it."""
    decide(decisions, USER, "analyse")
    worker.interrupt = fail_at("committed", Killed)
    with pytest.raises(Killed):
        tick(worker)
    worker.kill()
    worker.interrupt = lambda _point: None
    decide(decisions, USER, "train")
    worker.own()
    tick(worker)
    assert labels(worker) == [(1, "train"), (2, "analyse"), (3, "train")]


def test_a_tick_after_a_cancelled_one_does_not_take_its_decision_for_done(worker: Worker, decisions: Decisions) -> None:
    """The next tick has nothing to publish. It must not write that the changes of the cancelled one are reviewed."""
    decide(decisions, USER, "analyse")
    worker.interrupt = fail_at("published", Cancelled)
    with pytest.raises(Cancelled):
        tick(worker)
    worker.interrupt = lambda _point: None
    decide(decisions, "user-without-trajectory", "none")
    tick(worker)
    worker.leave()
    worker.own()
    tick(worker)
    assert labels(worker) == [(1, "train"), (2, "analyse")]
