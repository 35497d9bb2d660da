"""The process monitor tells restarts, ends and failures apart. A fake supervisord sets the processes' states."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepstream.embedded import monitor
from stepstream.embedded.errors import StackError
from stepstream.embedded.monitor import RESTARTS, WINDOW_S, ProcessMonitor
from stepstream.embedded.supervisord import Supervisord


class FakeSupervisord(Supervisord):
    """Reports the processes that the test sets."""

    def __init__(self) -> None:
        self.infos: list[dict[str, Any]] = []

    def call(self, method: str, *arguments: Any) -> Any:
        assert method == "getAllProcessInfo"
        return self.infos

    def set(self, name: str, status: str, pid: int = 0, exit_status: int = 0) -> None:
        others = [info for info in self.infos if info["name"] != name]
        self.infos = [*others, {"name": name, "statename": status, "pid": pid, "exitstatus": exit_status}]


@pytest.fixture
def supervisord() -> FakeSupervisord:
    return FakeSupervisord()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(monitor.time, "monotonic", lambda: now[0])
    return now


def test_a_new_process_id_is_reported_once_as_a_restart(
    supervisord: FakeSupervisord, tmp_path: Path, clock: list[float]
) -> None:
    monitored = ProcessMonitor(supervisord, tmp_path)
    supervisord.set("label", "RUNNING", pid=1)
    assert monitored.restarted() == []
    supervisord.set("label", "BACKOFF")
    assert monitored.restarted() == []
    supervisord.set("label", "STARTING", pid=2)
    assert monitored.restarted() == ["label"]
    assert monitored.restarted() == []


def test_a_deliberate_start_is_no_restart(supervisord: FakeSupervisord, tmp_path: Path, clock: list[float]) -> None:
    monitored = ProcessMonitor(supervisord, tmp_path)
    supervisord.set("label", "RUNNING", pid=1)
    monitored.restarted()
    supervisord.set("label", "STARTING", pid=2)
    monitored.record_start("label")
    assert monitored.restarted() == []


def test_more_crashes_within_the_window_than_allowed_raise(
    supervisord: FakeSupervisord, tmp_path: Path, clock: list[float]
) -> None:
    (tmp_path / "label.log").write_text("first line\nlast line\n")
    monitored = ProcessMonitor(supervisord, tmp_path)
    for crash in range(RESTARTS + 1):
        supervisord.set("label", "RUNNING", pid=crash + 1)
        monitored.restarted()
    supervisord.set("label", "RUNNING", pid=100)
    with pytest.raises(StackError, match=r"label crashed 7 times in 60 s; its log .*label\.log ends: last line"):
        monitored.restarted()


def test_crashes_spread_over_time_never_raise(supervisord: FakeSupervisord, tmp_path: Path, clock: list[float]) -> None:
    monitored = ProcessMonitor(supervisord, tmp_path)
    for crash in range(10 * RESTARTS):
        clock[0] += WINDOW_S / RESTARTS
        supervisord.set("label", "RUNNING", pid=crash + 1)
        monitored.restarted()


@pytest.mark.parametrize(("status", "exit_status"), [("FATAL", 0), ("EXITED", 2)])
def test_a_failed_or_misconfigured_process_raises_with_its_log(
    supervisord: FakeSupervisord, tmp_path: Path, status: str, exit_status: int
) -> None:
    monitored = ProcessMonitor(supervisord, tmp_path)
    supervisord.set("store", "RUNNING", pid=1)
    monitored.check()
    supervisord.set("store", status, exit_status=exit_status)
    with pytest.raises(StackError, match=r"store cannot be kept running; its log .*store\.log ends: \(empty\)"):
        monitored.check()


def test_a_full_disk_is_named_before_the_log(
    supervisord: FakeSupervisord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    excerpt = ProcessMonitor(supervisord, tmp_path).log_excerpt("broker")
    assert excerpt.startswith(f"the disk of {tmp_path.parent} is full: make room; ")


def test_a_crashed_process_that_will_restart_is_neither_down_nor_failed(
    supervisord: FakeSupervisord, tmp_path: Path
) -> None:
    supervisord.set("label", "EXITED", exit_status=-1)
    (state,) = ProcessMonitor(supervisord, tmp_path).check().values()
    assert not state.down
    supervisord.set("label", "EXITED", exit_status=0)
    (state,) = ProcessMonitor(supervisord, tmp_path).check().values()
    assert state.ended
    assert state.down
