"""A record at which a fold raises is tried again, then set aside, and takes effect once when it is sent again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from owner_model import CODEC, Log, Worker
from stream_records import as_governed, make_ending, make_steps

from stepstream.core.process import Fatal
from stepstream.jobs import label
from stepstream.jobs.label import Label
from stepstream.jobs.labels.fold import LabelFold
from stepstream.jobs.labels.trajectory_store import HEADS

STEPS, FEEDBACK, LABELS, LETTERS = "governed-steps", "governed-feedback", "labeled-trajectories", "dead-letters"


class Bug:
    """Raises in the fold at the first step of a trajectory whose name begins with `poison`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: str, error: Exception) -> None:
        self.mended, self.raised, self.heals_after = False, 0, 10**9
        apply, end_batch = LabelFold.apply, LabelFold.end_batch
        poisoned: set[int] = set()

        def fail() -> None:
            self.raised += 1
            if self.raised <= self.heals_after:
                raise error

        def broken_apply(fold: LabelFold, record: Any, event: Any, changes: Any, out: Any) -> None:
            is_poison = event["trajectory_id"].startswith("poison") and event.get("step_index") == 0
            apply(fold, record, event, changes, out)
            if is_poison and not self.mended:
                poisoned.add(id(changes))
                if place == "apply":
                    fail()

        def broken_end_batch(fold: LabelFold, changes: Any, out: Any) -> None:
            if id(changes) in poisoned and place == "end_batch":
                poisoned.discard(id(changes))
                fail()
            end_batch(fold, changes, out)

        monkeypatch.setattr(LabelFold, "apply", broken_apply)
        monkeypatch.setattr(LabelFold, "end_batch", broken_end_batch)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(label, "sealing_codec", lambda _, **__: CODEC)
    worker = Worker("one", Log(), tmp_path, Label)
    yield worker
    worker.kill()


def fill(log: Log, *names: str) -> None:
    for name in names:
        for step in make_steps(name, 2):
            log.append(STEPS, name, CODEC.encode(STEPS, as_governed(step)))
        log.append(FEEDBACK, name, CODEC.encode(FEEDBACK, as_governed(make_ending(name, 2))))


def run(worker: Worker) -> None:
    worker.own()
    while worker.deliver(10_000):
        pass


def redrive(log: Log) -> None:
    for letter in log.events(LETTERS):
        entry = log.topics[letter["topic"], 0][letter["offset"]].record
        assert entry is not None
        assert entry.value is not None
        log.append(letter["topic"], "poison", entry.value)


def complete(log: Log) -> dict[str, Any]:
    """Return the newest complete label of each trajectory."""
    return {one["trajectory_id"]: one for one in log.events(LABELS) if one["complete"]}


@pytest.mark.parametrize("place", ["apply", "end_batch"])
@pytest.mark.parametrize("loses_folder", [False, True])
def test_a_record_that_fails_is_set_aside_and_redriven_once(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, place: str, loses_folder: bool
) -> None:
    bug = Bug(monkeypatch, place, KeyError("text of the record"))
    fill(worker.log, "a", "poison", "b")
    run(worker)
    assert complete(worker.log).keys() == {"a", "b"}
    [letter] = worker.log.events(LETTERS)
    assert (letter["error"], letter["topic"], letter["offset"]) == ("failed", STEPS, 2)
    assert letter["reason"].startswith("the fold raises KeyError in fail (test_set_aside.py:")
    bug.mended = True
    if loses_folder:  # the mended fold must not take the record in without publishing
        worker.kill(with_folder=True)
    run(worker)
    redrive(worker.log)
    redrive(worker.log)
    run(worker)
    labels = complete(worker.log)
    assert labels.keys() == {"a", "b", "poison"}
    assert len(labels["poison"]["steps"]) == 2
    assert [one["revision"] for one in worker.log.events(LABELS) if one["trajectory_id"] == "a"] == [1]


def test_a_record_that_fails_once_is_no_dead_letter(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    Bug(monkeypatch, "apply", KeyError("once")).heals_after = 1
    fill(worker.log, "a", "poison")
    run(worker)
    assert complete(worker.log).keys() == {"a", "poison"}
    assert worker.log.events(LETTERS) == []


def test_many_failing_records_end_the_worker_without_effect(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    Bug(monkeypatch, "apply", KeyError("always"))
    fill(worker.log, *(f"poison-{n}" for n in range(30)))
    worker.own()
    with pytest.raises(KeyError, match="always"):
        worker.deliver(10_000)
    assert worker.log.events(LETTERS) == []
    assert not worker.log.committed


@pytest.mark.parametrize("error", [Fatal("stop"), OSError("disk"), Exception("RocksDB")])
def test_a_fault_of_a_service_or_disk_is_not_the_record_s(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    Bug(monkeypatch, "apply", error)
    fill(worker.log, "poison")
    worker.own()
    with pytest.raises(type(error)):
        worker.deliver(10_000)
    assert worker.log.events(LETTERS) == []


def test_a_state_that_the_fold_cannot_read_ends_the_worker_until_its_folder_is_moved(worker: Worker) -> None:
    for step in make_steps("a", 2):
        worker.log.append(STEPS, "a", CODEC.encode(STEPS, as_governed(step)))
    run(worker)
    assert worker.processor is not None
    [partition] = worker.processor._partitions.values()
    changes = partition.state.begin()
    [name] = [name for name, _ in partition.state.scan(HEADS)]
    changes.put(HEADS + name, b"no head")
    partition.state.write(changes, {}, 0)
    folder = partition.state.folder
    worker.kill()
    with pytest.raises(
        Fatal, match=rf"label cannot read the state of partition 0 in {folder}, the fold raises JSONDec"
    ):
        worker.own()
    worker.kill()
    folder.rename(folder.with_name("moved"))
    worker.log.append(FEEDBACK, "a", CODEC.encode(FEEDBACK, as_governed(make_ending("a", 2))))
    run(worker)
    assert complete(worker.log).keys() == {"a"}
