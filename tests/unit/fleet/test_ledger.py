"""Test the ledger, also with a torn last line, and how agents read a tool call's arguments."""

from pathlib import Path

import pytest

from stepstream.services.fleet.agent import harness_version, tool_input
from stepstream.services.fleet.ledger import Attempt, Ledger, read_ledger
from stepstream.services.fleet.lookup import Lookup


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


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input": "a+b"}', "a+b"), ('{"input": 3}', '{"input": 3}'), ("a+b", "a+b"), ("[1]", "[1]"), ("{}", "{}")],
)
def test_tool_input_is_the_argument_or_the_whole_text(arguments: str, text: str) -> None:
    assert tool_input(arguments) == text


def test_the_harness_version_depends_on_the_tools() -> None:
    class Fewer(Lookup):
        tools = Lookup.tools[:1]

    assert harness_version(Lookup) == harness_version(Lookup) != harness_version(Fewer)
