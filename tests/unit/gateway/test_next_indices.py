"""The next step index of a trajectory outlives its gateway, at the price of one small write, on a bounded file."""

import os
from pathlib import Path
from typing import Any

import pytest

from stepstream.services.gateway.context import step_indices
from stepstream.services.gateway.context.step_indices import FILE, NextIndices


def test_what_is_noted_is_there_for_the_next_process_and_beside_it(tmp_path: Path) -> None:
    killed, beside = NextIndices(tmp_path), NextIndices(tmp_path)
    killed.of("acme", "t").note(3)
    killed.of("other", "t").note(7)
    assert beside.of("acme", "t").value == 3
    after = NextIndices(tmp_path)  # the first one was never closed
    assert [after.of(tenant, "t").value for tenant in ("acme", "other", "third")] == [3, 7, None]
    for table in (killed, beside, after):
        table.close()
    assert (tmp_path / FILE).stat().st_size == step_indices.SLOTS * 16


def test_one_trajectory_has_one_place(tmp_path: Path) -> None:
    table = NextIndices(tmp_path)
    kept = table.of("acme", "t")
    for index in range(1, 5):
        kept.note(index)
    again = table.of("acme", "t")
    again.note(5)
    assert table.of("acme", "t").value == 5
    table.close()
    data = (tmp_path / FILE).read_bytes()
    assert len(data) - data.count(0) <= 16


def test_in_a_full_bucket_the_longest_without_a_call_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_indices, "_BUCKETS", 1)
    now = 1000
    monkeypatch.setattr(step_indices.time, "time", lambda: now)
    table = NextIndices(tmp_path)
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


def test_a_disk_that_fails_costs_only_the_knowledge(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    table = NextIndices(tmp_path / "file")
    table.of("acme", "t").note(3)
    assert table.of("acme", "t").value is None
    assert "not kept on disk" in caplog.text

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    table = NextIndices(tmp_path)
    monkeypatch.setattr(os, "pwrite", full)
    table.of("acme", "t").note(3)
    monkeypatch.setattr(os, "pread", full)
    assert table.of("acme", "t").value is None
    table.close()


def test_a_file_that_was_cut_or_damaged_gives_no_impossible_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_indices, "_BUCKETS", 1)
    (tmp_path / FILE).write_bytes(b"\xff" * 1000)
    table = NextIndices(tmp_path)
    kept = table.of("acme", "t")
    assert kept.value is None
    kept.note(2)
    assert table.of("acme", "t").value == 2
    table.close()
