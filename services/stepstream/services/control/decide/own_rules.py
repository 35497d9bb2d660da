"""Ask the rules of installed packages that a policy names, beside those of `diagnosis`. Pure, as each rule must be."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from stepstream.services.control.decide.diagnosis import Rule
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.decide.records import (
    LEVERS,
    TAKES_BACK,
    Action,
    Alternative,
    Evidence,
    Finding,
    History,
    Snapshot,
    digest,
)


@dataclass(frozen=True, slots=True)
class OwnRule:
    """Rule of an installed package."""

    name: str
    version: str
    """Package, its version and the digest of the rule's module: part of the policy's hash in each decision."""
    rule: Rule


def policy_hash(policy: ControlPolicy, own: Sequence[OwnRule]) -> str:
    """Return the hash (hex) of the policy in effect: of its values and of the own rules' versions."""
    if not own:
        return policy.hash
    return digest(policy.hash, [(one.name, one.version) for one in own])


def missing_rule(policy: ControlPolicy, own: Sequence[OwnRule]) -> str:
    """Return why nothing may be decided: a rule of the policy is not loaded; empty: all are."""
    missing = sorted(set(policy.own_rules) - {one.name for one in own})
    return f"the rule {missing[0]} of the policy is not installed" if missing else ""


def ask(
    snapshot: Snapshot, history: History, policy: ControlPolicy, own: Sequence[OwnRule]
) -> Iterator[Finding | Alternative]:
    """Yield the findings of the rules, and an alternative with the reason for each rule that failed."""
    for one in own:
        try:
            finding = one.rule(snapshot, history, policy)
            fault = "" if finding is None else _fault(finding)
        except Exception as error:  # it may raise anything; the other rules go on
            finding, fault = None, f"{type(error).__name__}: {error}"
        if fault:
            yield Alternative(one.name, "", "", f"the rule failed: {fault}")
        elif finding is not None:
            yield replace(finding, rule=one.name)


def _fault(finding: object) -> str:
    """Return why a finding is not valid; empty: it is."""
    if not isinstance(finding, Finding):
        return f"it returned {type(finding).__name__}, not a Finding or None"
    if finding.lever not in LEVERS:
        return f"no lever {finding.lever!r}; levers are {', '.join(LEVERS)}"
    if finding.action not in get_args(Action):
        return f"no action {finding.action!r}; actions are {', '.join(get_args(Action))}"
    if fault := _wrong_type(finding, {"target": str, "reason": str, "parent": str, "safety": bool, "evidence": tuple}):
        return fault
    if not finding.target:
        return "target is empty; name a version, tool, agent or model"
    if finding.safety and finding.action not in TAKES_BACK:
        return f"{finding.action} takes nothing back; safety=True is for {', '.join(TAKES_BACK)}"
    return next(filter(None, map(_evidence_fault, finding.evidence)), "")


def _evidence_fault(figure: object) -> str:
    """Return why a figure of a finding is not valid; empty: it is."""
    if not isinstance(figure, Evidence):
        return f"evidence has {type(figure).__name__}, not Evidence"
    if fault := _wrong_type(figure, {"name": str, "reason": str, "n": int}):
        return f"evidence {figure.name!r}: {fault}"
    numbers = [one for one in (figure.value, figure.low, figure.high) if one is not None]
    if not all(isinstance(one, (int, float)) and math.isfinite(one) for one in numbers):
        return f"evidence {figure.name!r} has a value or bound that is neither a finite number nor None"
    return "" if 0 <= figure.n < 2**63 else f"evidence {figure.name!r}: n is {figure.n}"


def _wrong_type(record: object, types: Mapping[str, type]) -> str:
    """Return which field has another type, or is a text that UTF-8 cannot hold; empty: none."""
    for name, expected in types.items():
        value = getattr(record, name)
        if not isinstance(value, expected):
            return f"{name} is {value!r}, not of type {expected.__name__}"
        if isinstance(value, str):
            value.encode()  # raises, as the rule may
    return ""
