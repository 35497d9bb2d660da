"""Ask the rules of installed packages that a policy names, beside those of `diagnosis`. Pure, as each rule must be."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from stepstream.services.control.decide.diagnosis import Rule
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.decide.records import (
    LEVERS,
    Action,
    Alternative,
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
    return ""
