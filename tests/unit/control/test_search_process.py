"""Test the process that searches for a proposal: its result, its end by itself and by the controller."""

import os
import subprocess
import sys
from pathlib import Path

import orjson
import psutil
import pytest
from waiting import wait_until

from stepstream.services.control.scope import Scope
from stepstream.services.control.search_process import MODULE, SearchProcess, SearchResult, Spent

SCOPE = Scope("acme", "shop", "m")
FOUND = """
import orjson, sys
task = orjson.loads(sys.stdin.buffer.read())
record = {"agent": task["agent"], "instructions": "x" * 500_000}
sys.stdout.buffer.write(orjson.dumps(dict(record=record, reason=task["tenant"], attempts=9, calls=3, tokens=4)))
"""
SPENDS = """
import orjson, signal, sys
from stepstream.services.control.search_process import write_spent
task = orjson.loads(sys.stdin.buffer.read())
write_spent(task["spent"], task["calls"] + 5, task["tokens"] + 600)
signal.pause()
"""
PROGRAMS = {
    "found": FOUND,
    "unavailable": """print('{"fault": "the gateway does not answer; start it"}')""",
    "breaks": "raise ValueError('no')",
    "spends": SPENDS,
    "endless": "import signal; signal.pause()",
}


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> SearchProcess:
    for name, text in PROGRAMS.items():
        (tmp_path / f"search_{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return SearchProcess(f"search_{request.param}")


def result(search: SearchProcess) -> SearchResult:
    found: list[SearchResult | None] = [None]

    def has_ended() -> bool:
        found[0] = search.poll()
        return found[0] is not None

    wait_until(has_ended)
    assert found[0] is not None
    return found[0]


@pytest.mark.parametrize("search", ["found"], indirect=True)
def test_a_search_gets_its_task_and_returns_a_result_larger_than_a_pipe(search: SearchProcess) -> None:
    with search:
        search.start("d", SCOPE, {}, Spent())
        assert search.decision_id == "d"
        found = result(search)
    assert not search.decision_id
    assert found.record is not None
    assert (found.record["agent"], len(found.record["instructions"] or "")) == ("shop", 500_000)
    assert (found.reason, found.is_fault, found.calls, found.tokens) == ("acme", False, 3, 4)


@pytest.mark.parametrize(
    ("search", "reason"),
    [("unavailable", "the gateway does not answer; start it"), ("breaks", "the search ended with status 1")],
    indirect=["search"],
)
def test_a_failure_has_its_reason(search: SearchProcess, reason: str) -> None:
    with search:
        search.start("d", SCOPE, {}, Spent())
        found = result(search)
    assert (found.record, found.is_fault, found.reason[: len(reason)]) == (None, True, reason)


@pytest.mark.parametrize("search", ["spends"], indirect=True)
def test_what_a_search_spends_is_known_while_it_runs_and_counts_on_from_the_one_before(search: SearchProcess) -> None:
    with search:
        search.start("d", SCOPE, {}, Spent(40, 5000))
        assert search.spent() in (Spent(40, 5000), Spent(45, 5600))
        wait_until(lambda: search.spent() == Spent(45, 5600))
        assert search.poll() is None


@pytest.mark.parametrize("search", ["endless"], indirect=True)
def test_leaving_the_context_ends_a_search(search: SearchProcess) -> None:
    with search:
        search.start("d", SCOPE, {}, Spent())
        assert search.poll() is None
        [child] = [one for one in psutil.Process().children() if "search_endless" in one.cmdline()]
    assert not child.is_running()
    assert not search.decision_id


def test_no_search_begins_after_the_end_of_the_controller() -> None:
    task = orjson.dumps({"parent": 1, "tenant": "acme", "agent": "shop", "versions": {}})
    done = subprocess.run([sys.executable, "-m", MODULE], input=task, capture_output=True)
    assert done.returncode == 1
    assert b"the controller has ended" in done.stderr
