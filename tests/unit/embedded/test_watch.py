"""What counts as a crash, as an end, and as beyond mending; supervisord's answers are made up."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepstream.embedded import watch
from stepstream.embedded.errors import StackError
from stepstream.embedded.supervisord import Supervisord
from stepstream.embedded.watch import RESTARTS, WINDOW_S, Watch


class Made(Supervisord):
    """Answers with the processes that the test sets."""

    def __init__(self) -> None:
        self.infos: list[dict[str, Any]] = []

    def call(self, method: str, *arguments: Any) -> Any:
        assert method == "getAllProcessInfo"
        return self.infos

    def set(self, name: str, status: str, pid: int = 0, exit_status: int = 0) -> None:
        kept = [info for info in self.infos if info["name"] != name]
        self.infos = [*kept, {"name": name, "statename": status, "pid": pid, "exitstatus": exit_status}]


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    return now


def test_new_process_id_is_a_restart_told_once(made: Made, tmp_path: Path, clock: list[float]) -> None:
    watched = Watch(made, tmp_path)
    made.set("label", "RUNNING", pid=1)
    assert watched.restarted() == []
    made.set("label", "BACKOFF")
    assert watched.restarted() == []
    made.set("label", "STARTING", pid=2)
    assert watched.restarted() == ["label"]
    assert watched.restarted() == []


def test_start_on_purpose_is_no_restart(made: Made, tmp_path: Path, clock: list[float]) -> None:
    watched = Watch(made, tmp_path)
    made.set("label", "RUNNING", pid=1)
    watched.restarted()
    made.set("label", "STARTING", pid=2)
    watched.expect("label")
    assert watched.restarted() == []


def test_too_many_crashes_within_the_window_cannot_be_mended(made: Made, tmp_path: Path, clock: list[float]) -> None:
    (tmp_path / "label.log").write_text("first line\nlast line\n")
    watched = Watch(made, tmp_path)
    for crash in range(RESTARTS + 1):
        made.set("label", "RUNNING", pid=crash + 1)
        watched.restarted()
    made.set("label", "RUNNING", pid=100)
    with pytest.raises(StackError, match=r"label crashed 7 times in 60 s; its log .*label\.log ends: last line"):
        watched.restarted()


def test_crashes_far_apart_are_mended_for_ever(made: Made, tmp_path: Path, clock: list[float]) -> None:
    watched = Watch(made, tmp_path)
    for crash in range(10 * RESTARTS):
        clock[0] += WINDOW_S / RESTARTS
        made.set("label", "RUNNING", pid=crash + 1)
        watched.restarted()


@pytest.mark.parametrize(("status", "exit_status"), [("FATAL", 0), ("EXITED", 2)])
def test_given_up_or_misconfigured_is_told(made: Made, tmp_path: Path, status: str, exit_status: int) -> None:
    watched = Watch(made, tmp_path)
    made.set("store", "RUNNING", pid=1)
    watched.look()
    made.set("store", status, exit_status=exit_status)
    with pytest.raises(StackError, match=r"store cannot be kept running; its log .*store\.log ends: \(empty\)"):
        watched.look()


def test_full_disk_is_named_before_the_log(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    assert Watch(made, tmp_path).last_words("broker").startswith(f"the disk of {tmp_path.parent} is full: make room; ")


def test_crash_about_to_be_mended_is_neither_down_nor_failed(made: Made, tmp_path: Path) -> None:
    made.set("label", "EXITED", exit_status=-1)
    (state,) = Watch(made, tmp_path).look().values()
    assert not state.down
    made.set("label", "EXITED", exit_status=0)
    (state,) = Watch(made, tmp_path).look().values()
    assert state.ended
    assert state.down
