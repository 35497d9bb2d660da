"""Check the learner's retention against a log in memory: events before files, faults, and what a crash left."""

from pathlib import Path
from typing import Any

import pytest
from version_log import VersionLog, write_version

from stepstream.config import Settings
from stepstream.core.process import Stop
from stepstream.learner import retention as module
from stepstream.learner.retention import Retention, left_files
from stepstream.topics.events import (
    Checkpoint,
    Rollout,
    new_checkpoint,
    new_rollout,
    new_update_input,
    new_worker_status,
)
from stepstream.topics.exclusive_producer import Fenced
from stepstream.versions.retention import REASON


class Log(VersionLog):
    """The producer and the followed tables, on one log in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.fault: Exception | None = None
        self.at_flush: list[bool] = []
        self.decided_meanwhile: list[Rollout] = []
        self.read = 0  # a follower is behind what it has not waited for
        self.reads: list[bool] = []
        """Outcomes of the next waits for the log's end; empty: it is reached."""

    def send(self, _topic: str, _key: str, record: Any) -> None:
        if self.fault is not None:
            raise self.fault
        self.events.append(record)

    def flush(self) -> None:
        self.rollouts += self.decided_meanwhile
        self.at_flush += [Path(one["uri"].removeprefix("file://")).exists() for one in self.events]

    def wait_current(self, _timeout_s: float) -> bool:
        if self.reads and not self.reads.pop(0):
            return False
        self.read = len(self.events)
        return True


def version(folder: Path, number: int) -> Checkpoint:
    files = write_version(folder / str(number))
    inputs = [new_update_input(update=number, partitions=[0], offsets=[number])]
    return new_checkpoint(
        event_id=f"e{number}", occurred_at_us=0, model="m", version=number, uri=(folder / str(number)).as_uri(),
        weights_sha256="", files=files, code_version="", parent_version=number - 1 if number else None, inputs=inputs,
    )  # fmt: skip


class Lab:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **learner: Any) -> None:
        self.log, self.folder = Log(), folder
        monkeypatch.setattr(module, "ExclusiveProducer", lambda *_: self.log)
        settings = Settings(learner={"model": "m", **learner})
        self.retention = Retention(settings, None, Stop())  # type: ignore[arg-type]
        monkeypatch.setattr(self.retention, "_thread", object())  # the test calls `_prune` itself

    def publish(self, number: int) -> None:
        checkpoint = version(self.folder, number)
        self.log.events.append(checkpoint)
        self.retention.prune_after(checkpoint)

    def prune(self) -> None:
        self.retention._prune(self.log, self.log)  # type: ignore[arg-type]

    def parts(self) -> dict[int, list[str]]:
        return {int(one.name): sorted(part.name for part in one.iterdir()) for one in self.folder.iterdir()}


def test_old_training_states_go_after_their_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, monkeypatch)
    for number in range(6):
        lab.publish(number)
        lab.prune()
    both = ["training", "weights"]
    assert lab.parts() == {0: ["weights"], 1: ["weights"], 2: ["weights"], 3: both, 4: both, 5: both}
    assert all(lab.log.at_flush), "files go once the events are durable"
    again = lab.log.events[-1]
    assert (again["version"], again["event_id"], again["inputs"][0]["offsets"]) == (2, "e2", [2])
    assert left_files(lab.log.events[-1:]) == []


def test_only_the_newest_versions_and_the_root_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, monkeypatch, keep_versions=2, keep_training=0)
    for number in range(6):
        lab.publish(number)
    lab.prune()
    assert sorted(lab.parts()) == [0, 4, 5]
    assert set(lab.retention._inputs) == {0, 4, 5}


def test_what_a_worker_serves_whose_clock_is_behind_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, monkeypatch, keep_versions=1)
    status = new_worker_status(
        event_id="s", occurred_at_us=0, worker_id="w", model="m", engine="torch", url="http://w", version=2
    )
    monkeypatch.setattr(lab.log, "items", lambda: {"w": status})
    lab.retention._note_worker("w", status)
    for number in range(5):
        lab.publish(number)
    lab.prune()
    assert sorted(lab.parts()) == [0, 2, 3, 4]
    lab.retention._heard["w"] -= 1000.0
    lab.prune()
    assert sorted(lab.parts()) == [0, 3, 4]


def test_nothing_is_removed_without_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, monkeypatch, keep_versions=1)
    for number in range(4):
        lab.publish(number)
    lab.log.fault = Fenced("a newer producer took over")
    with pytest.raises(Fenced):
        lab.prune()
    assert sorted(lab.parts()) == [0, 1, 2, 3]


def test_files_that_cannot_be_removed_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, monkeypatch, keep_versions=1)
    for number in range(4):
        lab.publish(number)

    def refuse(*_: str) -> None:
        raise OSError("read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(module, "remove", refuse)
        lab.prune()
    assert sorted(lab.parts()) == [0, 1, 2, 3]
    lab.prune()
    assert sorted(lab.parts()) == [0, 2, 3]


def test_files_that_a_crash_left_after_their_event_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, monkeypatch)
    for number in range(3):
        lab.publish(number)
    removed = {**lab.log.events[0], "removed_at_us": 1}
    trimmed = {**lab.log.events[1], "files": lab.log.events[1]["files"][:1]}
    lab.log.events += [removed, trimmed]  # type: ignore[list-item]
    lab.prune()
    assert lab.parts() == {1: ["weights"], 2: ["training", "weights"]}


def test_files_that_a_present_version_shares_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, monkeypatch)
    lab.publish(0)
    lab.publish(1)
    lab.log.events[1]["uri"] = lab.log.events[0]["uri"]
    lab.log.events.append({**lab.log.events[0], "removed_at_us": 1})
    lab.prune()
    assert 0 in lab.parts()


def test_a_setting_of_0_keeps_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, monkeypatch, keep_training=0)
    for number in range(5):
        lab.publish(number)
    assert not lab.retention._wake.is_set()
    assert not lab.retention._inputs


def test_a_version_that_a_rollback_names_meanwhile_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, monkeypatch, keep_versions=2, keep_training=1)
    for number in range(6):
        lab.publish(number)
    lab.log.decided_meanwhile = [new_rollout(event_id="r", occurred_at_us=1, model="m", stable_version=2)]
    lab.prune()
    both = ["training", "weights"]
    assert lab.parts() == {0: ["weights"], 2: both, 4: ["weights"], 5: both}
    newest = [event for event in lab.log.events if event["version"] == 2][-1]
    assert (newest["removed_at_us"], len(newest["files"]), newest["inputs"][0]["offsets"]) == (None, 2, [2])
    lab.prune()
    assert lab.parts()[2] == both


def test_versions_are_put_back_if_the_log_cannot_be_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, monkeypatch, keep_versions=2, keep_training=1)
    for number in range(6):
        lab.publish(number)
    lab.log.decided_meanwhile = [new_rollout(event_id="r", occurred_at_us=1, model="m", stable_version=2)]
    lab.log.reads = [True, True, False]
    with pytest.raises(TimeoutError):
        lab.prune()
    both = ["training", "weights"]
    assert lab.parts() == dict.fromkeys(range(6), both)
    lab.prune()
    assert lab.parts() == {0: ["weights"], 2: both, 4: ["weights"], 5: both}
    newest = [event for event in lab.log.events if event["version"] == 2][-1]
    assert (newest["removed_at_us"], len(newest["files"]), newest["inputs"][0]["offsets"]) == (None, 2, [2])


def test_a_crash_between_a_removal_and_its_check_removes_nothing_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path, monkeypatch)
    for number in range(4):
        lab.publish(number)
    gone = {"removed_at_us": 1, "removal_reason": REASON}
    lab.log.events += [{**lab.log.events[number], **gone} for number in (1, 2)]  # type: ignore[typeddict-item]
    lab.log.rollouts = [new_rollout(event_id="r", occurred_at_us=1, model="m", stable_version=2)]
    lab.prune()
    assert sorted(lab.parts()) == [0, 2, 3]
    newest = lab.log.events[-1]
    assert (newest["version"], newest["removed_at_us"], newest["removal_reason"]) == (2, None, "")
    assert newest["inputs"][0]["offsets"] == [2]
    lab.prune()
    assert lab.parts()[2] == ["training", "weights"]
