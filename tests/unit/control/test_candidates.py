"""Test which versions of the weights may be tried: after harm, after a canary without result, and after both."""

from typing import Any

from sample_records import checkpoint

from stepstream.services.control import acts
from stepstream.services.control.decide.decide import decide
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.decide.records import CANARY, NO_RESULT, History, Past
from stepstream.services.control.history import DecisionLog, history_of
from stepstream.services.control.scope import Scope, Serving
from stepstream.services.control.snapshot import snapshot_of
from stepstream.services.control.statistics import OutcomeRow, Position, Statistics
from stepstream.topics.catalogue import DECISION_ACTS, DECISIONS, ROLLOUTS
from stepstream.topics.events import new_decision, new_decision_act, new_decision_evidence, new_harness
from stepstream.versions import rollout_actions
from stepstream.versions.rollouts import ModelVersions

SCOPE = Scope("default", "a", "m")
TRIED = (Past("d", 1, "weights", "canary", "2"),)


def published(*parents: int | None) -> ModelVersions:
    """Return versions 1, 2, … with these parents; version 1 is stable."""
    versions = ModelVersions()
    for version, parent in enumerate(parents, 1):
        versions.apply_checkpoint(version, checkpoint(version, model="m", parent_version=parent))
    apply(versions, rollout_actions.promote("m", versions, 1))
    return versions


def apply(versions: ModelVersions, decision: rollout_actions.Decision) -> None:
    versions.apply_rollout(decision.event("m", event_id="r", occurred_at_us=1, reason="", author=""))


def end_canary(versions: ModelVersions, rule: str) -> None:
    """Do a decision that ends the canary of version 2."""
    apply(versions, rollout_actions.start_canary("m", versions, 2, 0.1))
    fields: dict[str, Any] = {"tenant": SCOPE.tenant, "agent": SCOPE.agent, "model": SCOPE.model, "lever": "weights"}
    decision = new_decision(event_id="d", occurred_at_us=1, action="rollback", target="1", rule=rule, **fields)
    records = acts.do(decision, Serving(versions, {}), 2)
    [rollout] = [one.value for one in records if one.topic == ROLLOUTS]
    versions.apply_rollout(rollout)
    assert versions.served.canary is None


def candidates(versions: ModelVersions) -> list[str]:
    statistics = Statistics(Position("", 9))
    snapshot = snapshot_of(SCOPE, 9, 0, statistics, Serving(versions, {}), History(TRIED))
    return [one.version for one in snapshot.candidates]


def test_descendants_of_a_version_that_was_not_better_are_tried() -> None:
    versions = published(None, 1, 2, 3)
    end_canary(versions, NO_RESULT)
    assert versions.served.taken_back == set()
    assert candidates(versions) == ["3", "4"]


def test_descendants_of_a_version_that_did_harm_are_not_tried_but_later_ones_from_the_stable_are() -> None:
    versions = published(None, 1, 2, 3, 1)
    end_canary(versions, CANARY)
    assert versions.served.taken_back == {2}
    assert candidates(versions) == ["5"]


def test_a_version_whose_canary_failed_is_tried_again_after_the_cool_down() -> None:
    versions = published(None, 1)
    log = DecisionLog()
    about: dict[str, Any] = {"tenant": SCOPE.tenant, "agent": SCOPE.agent, "model": SCOPE.model}
    canary = new_decision(event_id="d", occurred_at_us=1, action="canary", lever="weights", target="2", **about)
    log.add(DECISIONS, {**canary, "watched_until_us": 5})
    log.add(DECISION_ACTS, new_decision_act(event_id="f", occurred_at_us=2, decision_id="d", state="failed", **about))
    serving = Serving(versions, {})
    history = history_of(SCOPE, log, serving, owns_weights=True)
    outcomes = tuple(OutcomeRow(us, "stable", "", True, "", "f", "", False) for us in range(1, 99))

    def decided(at_us: int) -> str:
        statistics = Statistics(Position("", at_us), outcomes)
        decision = decide(snapshot_of(SCOPE, at_us, 0, statistics, serving, history), history, ControlPolicy())
        return f"{decision.action} {decision.target}" if decision.target else decision.reason

    assert decided(3) == "the same decision is in force"
    assert decided(100) == "cool-down of weights"
    assert decided(3_600_000_002) == "canary 2"


def test_a_proposal_with_a_measured_gain_is_tried_for_it_and_one_without_gain_is_not() -> None:
    def rule_of(low: float) -> tuple[str, str]:
        gain = new_decision_evidence(name="headroom", value=0.2, low=low, high=0.3, n=60)
        harness = new_harness(
            event_id="h", occurred_at_us=1, tenant="default", agent="a", version="v", state="proposed", headroom=gain
        )
        outcomes = tuple(OutcomeRow(us, "stable", "", True, "", "f", "", False) for us in range(1, 99))
        statistics = Statistics(Position("", 100), outcomes)
        snapshot = snapshot_of(SCOPE, 100, 0, statistics, Serving(ModelVersions(), {"v": harness}), History())
        decision = decide(snapshot, History(), ControlPolicy())
        return decision.rule, decision.action

    assert rule_of(0.1) == ("headroom", "canary")
    assert rule_of(-0.1)[1] == "hold"


def test_outcomes_of_a_canary_that_has_ended_are_not_those_of_the_stable_version() -> None:
    retired = new_harness(
        event_id="", occurred_at_us=0, tenant="default", agent=SCOPE.agent, version="bad", state="retired"
    )
    outcomes = (
        OutcomeRow(1, "stable", "good", True, "", "f", "", False),
        OutcomeRow(2, "canary", "good", False, "", "f", "", False),
        OutcomeRow(3, "stable", "bad", False, "", "f", "", False),
        OutcomeRow(4, "stable", "good", None, "", "f", "", False),
    )
    statistics = Statistics(Position("", 9), outcomes=outcomes)
    serving = Serving(ModelVersions(), {"bad": retired})
    snapshot = snapshot_of(SCOPE, 9, 0, statistics, serving, History())
    assert [(one.track, one.success) for one in snapshot.outcomes] == [("stable", True), ("stable", None)]
