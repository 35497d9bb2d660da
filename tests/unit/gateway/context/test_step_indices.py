"""Step indices outlive their gateway in a file of fixed size, and no two processes assign one twice."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepstream.services.gateway.context import step_indices
from stepstream.services.gateway.context.endings import EndingFile
from stepstream.services.gateway.context.step_indices import FILE, StepIndexFile


def test_an_index_is_visible_to_other_processes_at_once_and_after_a_kill(tmp_path: Path) -> None:
    killed, other = StepIndexFile(tmp_path), StepIndexFile(tmp_path)
    assert killed.reserve("acme", "t", 2) == 2
    killed.advance("other", "t", 7)
    assert other.next_of("acme", "t") == 3
    assert other.reserve("acme", "t", 0) == 3
    assert killed.reserve("acme", "t", 3) == 4
    after = StepIndexFile(tmp_path)  # the first one is never closed
    assert [after.next_of(tenant, "t") for tenant in ("acme", "other", "third")] == [5, 7, None]
    for table in (killed, other, after):
        table.close()
    assert (tmp_path / FILE).stat().st_size == step_indices.SLOTS * 16


RESERVE = """
import sys
from pathlib import Path
from stepstream.services.gateway.context.step_indices import StepIndexFile
table = StepIndexFile(Path(sys.argv[1]))
print(*(table.reserve("acme", "t", 0) for _ in range(300)))
"""


def test_processes_that_count_at_once_never_get_the_same_index(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RESERVE, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    reserved = [int(index) for process in processes for index in process.communicate()[0].split()]
    assert sorted(reserved) == list(range(600))


def test_a_trajectory_uses_one_slot(tmp_path: Path) -> None:
    table = StepIndexFile(tmp_path)
    for index in range(5):
        assert table.reserve("acme", "t", 0) == index
    table.advance("acme", "t", 3)
    assert table.next_of("acme", "t") == 5
    table.close()
    data = (tmp_path / FILE).read_bytes()
    assert len(data) - data.count(0) <= 16


def test_in_a_full_bucket_the_oldest_entry_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_indices, "SLOTS", 8)
    now = 1000
    monkeypatch.setattr("stepstream.services.gateway.context.slot_file.time.time", lambda: now)
    table = StepIndexFile(tmp_path)
    for number in range(8):
        now += 1
        table.advance("acme", f"t{number}", number + 1)
    now += 1
    table.advance("acme", "t0", 10)
    table.advance("acme", "new", 1)
    values = [table.next_of("acme", f"t{number}") for number in range(8)]
    assert values == [10, None, 3, 4, 5, 6, 7, 8]
    assert table.next_of("acme", "new") == 1
    table.close()


def test_a_failing_disk_is_logged_and_fails_no_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    table = StepIndexFile(tmp_path / "file")
    assert table.reserve("acme", "t", 3) == 3
    assert table.next_of("acme", "t") is None
    assert "not stored on disk" in caplog.text

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    table = StepIndexFile(tmp_path)
    monkeypatch.setattr(os, "pwrite", full)
    assert table.reserve("acme", "t", 3) == 3
    monkeypatch.setattr(os, "pread", full)
    assert table.reserve("acme", "t", 4) == 4
    assert table.next_of("acme", "t") is None
    table.close()


def test_a_damaged_file_gives_no_impossible_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_indices, "SLOTS", 8)
    (tmp_path / FILE).write_bytes(b"\xff" * 1000)
    table = StepIndexFile(tmp_path)
    assert table.next_of("acme", "t") is None
    assert table.reserve("acme", "t", 1) == 1
    assert table.next_of("acme", "t") == 2
    table.close()


@pytest.mark.parametrize("name", ["0af7651916cd43dd8448eb211c80319c", "6f1d3a52-8a3e-5c0f-9a57-3c0f0a2f7f10"])
def test_another_process_finds_the_trajectory_of_a_conversation(tmp_path: Path, name: str) -> None:
    one, two = EndingFile(tmp_path), EndingFile(tmp_path)
    one.put(("acme", "key"), b"0123456789abcdef", name)
    one.put(("acme", "key"), b"fedcba9876543210", "no UUID")
    assert two.get(("acme", "key"), b"0123456789abcdef") == name
    assert two.get(("other", "key"), b"0123456789abcdef") is None
    assert two.get(("acme", "key"), b"fedcba9876543210") is None
    one.close()
    two.close()
