"""Test which version is the last one that a person approved."""

from typing import Any

from stepstream.services.control.approved import ApprovedVersion, approved_version
from stepstream.services.control.decide.records import Canary
from stepstream.services.control.history import AUTHOR, DecisionLog
from stepstream.services.control.scope import Scope, Serving
from stepstream.topics.catalogue import DECISION_ACTS, DECISIONS
from stepstream.topics.events import new_decision, new_decision_act, new_harness
from stepstream.versions.rollouts import ModelVersions

SCOPE = Scope("acme", "shop", "m")
WEIGHTS = Canary("weights", "9", "8", 100, 0.1)
PROMPT = Canary("prompt", "p9", "p8", 100, 0.1)


def log_of(*promotions: dict[str, Any], state: str = "done") -> DecisionLog:
    """Return a log of promotions, each with an act."""
    log = DecisionLog()
    for at_us, fields in enumerate(promotions, 1):
        known = {"tenant": "acme", "agent": "shop", "model": "m", "event_id": f"d{at_us}", "occurred_at_us": at_us}
        decision = new_decision(**{**known, "action": "promote", "lever": "weights", "approvals": 1, **fields})
        log.add(DECISIONS, decision)
        act = new_decision_act(
            event_id=f"a{at_us}",
            occurred_at_us=at_us,
            tenant="acme",
            agent=decision["agent"],
            model="m",
            decision_id=decision["event_id"],
            state=state,
        )
        log.add(DECISION_ACTS, act)
    return log


def serving(**authors: str) -> Serving:
    """Return stable harness versions with their authors, in order of time."""
    harnesses = {
        version: new_harness(
            event_id=version,
            occurred_at_us=at_us,
            tenant="acme",
            agent="shop",
            version=version,
            state="stable",
            author=author,
        )
        for at_us, (version, author) in enumerate(authors.items(), 1)
    }
    return Serving(ModelVersions(), harnesses)


def test_the_newest_promotion_that_people_approved_counts() -> None:
    log = log_of(
        {"target": "1"},
        {"target": "2", "agent": "other"},
        {"target": "3", "approvals": 0},
        {"target": "4", "model": "n"},
        {"target": "5", "tenant": "other"},
        {"target": "p1", "lever": "prompt"},
    )
    assert approved_version(SCOPE, WEIGHTS, log, serving()) == (2, "2")
    assert approved_version(SCOPE, PROMPT, log, serving()) == (6, "p1")
    assert approved_version(SCOPE, WEIGHTS, log_of({"target": "1"}, state="undone"), serving()) is None


def test_a_promotion_by_hand_is_an_approval() -> None:
    log = log_of({"target": "1"})
    assert approved_version(SCOPE, WEIGHTS, log, serving(), [ApprovedVersion(5, "3")]) == (5, "3")
    assert approved_version(SCOPE, PROMPT, log, serving(p1="ada", p2=AUTHOR)) == (1, "p1")


def test_the_parent_is_compared_once() -> None:
    log = log_of({"target": "1"})
    assert approved_version(SCOPE, WEIGHTS, log, serving(), [ApprovedVersion(5, "8")]) is None
    assert approved_version(SCOPE, WEIGHTS, DecisionLog(), serving(), []) is None
