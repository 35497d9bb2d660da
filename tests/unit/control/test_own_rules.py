"""Own rules: provenance, limits, and faults that stop nothing else."""

from dataclasses import replace
from math import nan
from typing import Any

import pytest

from stepstream.analytics.tools import Calls
from stepstream.services.control.decide.decide import decide
from stepstream.services.control.decide.own_rules import OwnRule
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.decide.records import (
    Action,
    Evidence,
    Finding,
    History,
    Outcome,
    Snapshot,
    Source,
    ToolWindow,
)

BROKEN = ToolWindow("search", "2", "timeout", Calls(1800, 36), Calls(120, 20))
OUTCOMES = (Outcome("stable", True),) * 100
POLICY = ControlPolicy(own_rules=("mine",))
STARTS: tuple[Action, ...] = ("canary", "widen", "promote", "train", "resample", "propose")
FINDING = Finding("another name", "prompt", "propose", "shop", "because")


def snapshot(tools: tuple[ToolWindow, ...] = ()) -> Snapshot:
    return Snapshot("default", "shop", "m", 1, 1, Source("v", "1"), OUTCOMES, tools=tools)


def own(answer: Any, version: str = "shop 1") -> tuple[OwnRule, ...]:
    def rule(*_inputs: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return (OwnRule("mine", version, rule),)


def test_an_own_rule_decides_under_its_name_and_within_the_limits() -> None:
    decision = decide(snapshot(), History(), POLICY, own(FINDING))
    assert (decision.rule, decision.action, decision.lever) == ("mine", "propose", "prompt")
    frozen = POLICY.model_copy(update={"freeze": True})
    held = decide(snapshot(), History(), frozen, own(FINDING))
    assert (held.action, held.reason) == ("hold", "frozen")


def test_the_hash_of_the_policy_names_the_version_of_the_rule() -> None:
    first, second = (decide(snapshot(), History(), POLICY, own(None, version)) for version in ("shop 1", "shop 2"))
    assert len({POLICY.hash, first.policy_hash, second.policy_hash}) == 3
    assert first.id != second.id


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        ("propose", "it returned str, not a Finding or None"),
        (replace(FINDING, lever="wheels"), "no lever 'wheels'"),  # type: ignore[arg-type]
        (replace(FINDING, action="push"), "no action 'push'"),  # type: ignore[arg-type]
        (replace(FINDING, target=None), "target is None"),  # type: ignore[arg-type]
        (replace(FINDING, target=""), "target is empty"),
        (replace(FINDING, target="\ud800"), "surrogates"),
        (replace(FINDING, reason=None), "reason is None"),  # type: ignore[arg-type]
        (replace(FINDING, parent=3), "parent is 3"),  # type: ignore[arg-type]
        (replace(FINDING, evidence=None), "evidence is None"),  # type: ignore[arg-type]
        (replace(FINDING, evidence=(1,)), "evidence has int"),  # type: ignore[arg-type]
        (replace(FINDING, evidence=(Evidence("x", nan),)), "'x' has a value or bound"),
        (replace(FINDING, evidence=(Evidence("x", "y"),)), "'x' has a value or bound"),  # type: ignore[arg-type]
        (replace(FINDING, evidence=(Evidence("x", 1, n=0.5),)), "evidence 'x': n is 0.5"),  # type: ignore[arg-type]
        (replace(FINDING, safety=None), "safety is None"),  # type: ignore[arg-type]
        *((replace(FINDING, action=action, safety=True), "takes nothing back") for action in STARTS),
    ],
)
def test_a_rule_that_fails_is_listed_and_the_others_decide(answer: Any, fault: str) -> None:
    decision = decide(snapshot(tools=(BROKEN,)), History(), POLICY, own(answer))
    assert (decision.rule, decision.action) == ("tool_errors", "disable")
    assert any(lost.rule == "mine" and fault in lost.reason for lost in decision.lost)


def test_a_rule_that_is_not_loaded_holds() -> None:
    decision = decide(snapshot(tools=(BROKEN,)), History(), POLICY)
    assert (decision.action, decision.reason) == ("hold", "the rule mine of the policy is not installed")
