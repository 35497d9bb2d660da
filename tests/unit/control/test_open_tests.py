"""Test how many tests of canaries the error of a promotion is divided by."""

from types import SimpleNamespace
from typing import Any

from stepstream.services.control.log import ControlLog
from stepstream.services.control.scope import Scope
from stepstream.topics.catalogue import HARNESSES
from stepstream.topics.events import new_harness


def test_each_scope_that_judges_a_canary_counts() -> None:
    canary = new_harness(
        event_id="", occurred_at_us=0, tenant="acme", agent="a", version="1", state="canary", share=0.1
    )
    log: Any = ControlLog.__new__(ControlLog)
    log._tables = {HARNESSES: SimpleNamespace(items=lambda: {"1": canary})}
    log._versions = SimpleNamespace(served=lambda model: SimpleNamespace(canary=2 if model == "m" else None))
    assert log.open_tests([Scope("acme", "b", "n")]) == 0
    assert log.open_tests([Scope("acme", "b", "m"), Scope("other", "a", "m")]) == 1, "one scope judges weights"
    assert log.open_tests([Scope("acme", "a", "n")]) == 1
    assert log.open_tests([Scope("acme", "a", "n"), Scope("acme", "a", "o")]) == 2, "an agent that calls two models"
    assert log.open_tests([Scope("acme", "a", "m"), Scope("acme", "a", "o")]) == 3
