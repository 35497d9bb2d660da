"""Test the ledger, also with a torn last line."""

from pathlib import Path

from stepstream.services.fleet.ledger import Attempt, Ledger, read_ledger


def test_appended_attempts_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "ledger.jsonl"
    entries = [
        Attempt("t1", "lookup/train/1", "train", "g", 1, steps=4, feedback=["f"], outcome=1.0, end="terminated"),
        Attempt("t2", "lookup/train/1", "train", None, 2, status="lost", unsure=True, error="gone"),
    ]
    for entry in entries:  # one process after another
        ledger = Ledger(path)
        ledger.append(entry)
        ledger.close()
    assert list(read_ledger(path)) == entries


def test_a_torn_last_line_is_skipped_and_the_next_process_appends(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first, second = (Attempt(f"t{i}", "task", "train", None, i) for i in range(2))
    ledger = Ledger(path)
    ledger.append(first)
    ledger.close()
    path.write_bytes(path.read_bytes() + b'{"trajectory_id":"torn')
    assert list(read_ledger(path)) == [first]
    ledger = Ledger(path)
    ledger.append(second)
    ledger.close()
    assert list(read_ledger(path)) == [first, second]


def test_a_missing_ledger_is_empty(tmp_path: Path) -> None:
    assert list(read_ledger(tmp_path / "none")) == []
