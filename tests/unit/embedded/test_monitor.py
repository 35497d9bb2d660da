"""The process monitor tells restarts, ends and failures apart. A fake supervisord sets the processes' states."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepstream.embedded.errors import StackError
from stepstream.embedded.monitor import FIRST_PAUSE_S, LONGEST_PAUSE_S, RESTARTS, WINDOW_S, ProcessMonitor
from stepstream.embedded.supervisord import Supervisord


class FakeSupervisord(Supervisord):
    """Reports the processes that the test sets."""

    def __init__(self) -> None:
        self.infos: list[dict[str, Any]] = []
        self.started: list[str] = []

    def call(self, method: str, *arguments: Any) -> Any:
        if method == "startProcess":
            self.started.append(arguments[0])
            return None
        if method == "stopProcess":
            self.set(arguments[0], "STOPPED")
            return None
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
    monkeypatch.setattr("stepstream.embedded.monitor.time.monotonic", lambda: now[0])
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


def test_a_failed_process_that_is_not_essential_starts_again_after_growing_pauses(
    supervisord: FakeSupervisord, tmp_path: Path, clock: list[float]
) -> None:
    (tmp_path / "fleet.log").write_text("no such environment\n")
    monitored = ProcessMonitor(supervisord, tmp_path, essential=["gateway"])
    supervisord.set("gateway", "RUNNING", pid=1)
    pauses: list[float] = []
    for _ in range(7):
        supervisord.set("fleet", "FATAL")
        ((name, description),) = monitored.retry()
        assert name == "fleet"
        assert description.endswith("ends: no such environment")
        assert list(monitored.retry()) == []  # reported once
        began = clock[0]
        while len(supervisord.started) == len(pauses):
            clock[0] += 1
            assert list(monitored.retry()) == []
        pauses.append(clock[0] - began)
        supervisord.set("fleet", "STARTING", pid=len(pauses))
        assert list(monitored.retry()) == []
    assert pauses == [FIRST_PAUSE_S, 20.0, 40.0, 80.0, 160.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_a_process_that_failed_long_ago_begins_with_the_first_pause(
    supervisord: FakeSupervisord, tmp_path: Path, clock: list[float]
) -> None:
    monitored = ProcessMonitor(supervisord, tmp_path, essential=[])
    for _ in range(2):
        supervisord.set("console", "FATAL")
        ((_, description),) = monitored.retry()
        assert f"next try is in {FIRST_PAUSE_S:g} s" in description
        clock[0] += FIRST_PAUSE_S
        assert list(monitored.retry()) == []
        supervisord.set("console", "RUNNING", pid=1)
        assert list(monitored.retry()) == []
        clock[0] += 2 * LONGEST_PAUSE_S + 1
    assert supervisord.started == ["console", "console"]


def test_a_misconfigured_process_that_is_not_essential_stays_down(
    supervisord: FakeSupervisord, tmp_path: Path, clock: list[float]
) -> None:
    monitored = ProcessMonitor(supervisord, tmp_path, essential=["gateway"])
    supervisord.set("console", "EXITED", exit_status=2)
    ((name, description),) = monitored.retry()
    assert (name, "mend its settings" in description) == ("console", True)
    clock[0] += 10 * LONGEST_PAUSE_S
    assert list(monitored.retry()) == []
    assert supervisord.started == []


def test_a_process_that_is_not_essential_and_restarts_too_often_pauses(
    supervisord: FakeSupervisord, tmp_path: Path, clock: list[float]
) -> None:
    monitored = ProcessMonitor(supervisord, tmp_path, essential=["gateway"])
    for pid in range(1, RESTARTS + 3):
        supervisord.set("console", "RUNNING", pid=pid)
        monitored.restarted()
    assert [info["statename"] for info in supervisord.infos] == ["STOPPED"]
    assert [name for name, _ in monitored.retry()] == ["console"]
    clock[0] += FIRST_PAUSE_S
    assert list(monitored.retry()) == []
    assert supervisord.started == ["console"]


def test_a_failed_essential_process_raises_beside_others_that_may_fail(
    supervisord: FakeSupervisord, tmp_path: Path, clock: list[float]
) -> None:
    monitored = ProcessMonitor(supervisord, tmp_path, essential=["gateway"])
    supervisord.set("gateway", "FATAL")
    with pytest.raises(StackError, match="gateway cannot be kept running"):
        monitored.restarted()
