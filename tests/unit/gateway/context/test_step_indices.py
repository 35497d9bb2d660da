"""The next step index of a trajectory outlives its gateway in a file of fixed size."""

import os
from pathlib import Path
from typing import Any

import pytest

from stepstream.services.gateway.context import step_indices
from stepstream.services.gateway.context.step_indices import FILE, StepIndexFile


def test_an_index_is_visible_to_other_processes_at_once_and_after_a_kill(tmp_path: Path) -> None:
    killed, other = StepIndexFile(tmp_path), StepIndexFile(tmp_path)
    killed.of("acme", "t").note(3)
    killed.of("other", "t").note(7)
    assert other.of("acme", "t").value == 3
    after = StepIndexFile(tmp_path)  # the first one is never closed
    assert [after.of(tenant, "t").value for tenant in ("acme", "other", "third")] == [3, 7, None]
    for table in (killed, other, after):
        table.close()
    assert (tmp_path / FILE).stat().st_size == step_indices.SLOTS * 16


def test_a_trajectory_uses_one_slot(tmp_path: Path) -> None:
    table = StepIndexFile(tmp_path)
    entry = table.of("acme", "t")
    for index in range(1, 5):
        entry.note(index)
    again = table.of("acme", "t")
    again.note(5)
    assert table.of("acme", "t").value == 5
    table.close()
    data = (tmp_path / FILE).read_bytes()
    assert len(data) - data.count(0) <= 16


def test_in_a_full_bucket_the_oldest_entry_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_indices, "_BUCKETS", 1)
    now = 1000
    monkeypatch.setattr(step_indices.time, "time", lambda: now)
    table = StepIndexFile(tmp_path)
    for number in range(8):
        now += 1
        table.of("acme", f"t{number}").note(number + 1)
    now += 1
    table.of("acme", "t0").note(10)
    table.of("acme", "new").note(1)
    values = [table.of("acme", f"t{number}").value for number in range(8)]
    assert values == [10, None, 3, 4, 5, 6, 7, 8]
    assert table.of("acme", "new").value == 1
    table.close()


def test_a_failing_disk_is_logged_and_fails_no_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    table = StepIndexFile(tmp_path / "file")
    table.of("acme", "t").note(3)
    assert table.of("acme", "t").value is None
    assert "not stored on disk" in caplog.text

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    table = StepIndexFile(tmp_path)
    monkeypatch.setattr(os, "pwrite", full)
    table.of("acme", "t").note(3)
    monkeypatch.setattr(os, "pread", full)
    assert table.of("acme", "t").value is None
    table.close()


def test_a_damaged_file_gives_no_impossible_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_indices, "_BUCKETS", 1)
    (tmp_path / FILE).write_bytes(b"\xff" * 1000)
    table = StepIndexFile(tmp_path)
    entry = table.of("acme", "t")
    assert entry.value is None
    entry.note(2)
    assert table.of("acme", "t").value == 2
    table.close()
