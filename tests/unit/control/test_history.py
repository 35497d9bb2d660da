"""Test that the history, and so each decision, depends on which records are on the log: not on order or repetition."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from sample_records import checkpoint

from stepstream.services.control.decide.decide import decide
from stepstream.services.control.decide.event import event_of
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.history import DecisionLog, history_of
from stepstream.services.control.scope import Scope, Serving
from stepstream.services.control.snapshot import snapshot_of
from stepstream.services.control.statistics import OutcomeRow, Position, Statistics
from stepstream.topics.catalogue import APPROVALS, DECISION_ACTS, DECISIONS
from stepstream.topics.events import new_approval, new_decision, new_decision_act
from stepstream.versions import rollout_actions
from stepstream.versions.rollouts import ModelVersions

SCOPES = (Scope("default", "a", "m"), Scope("default", "b", "m"), Scope("other", "a", "m"))
NOW_US = 1_000_000_000
Records = list[tuple[str, Any]]

pulls = st.tuples(
    st.sampled_from(SCOPES),
    st.integers(0, 50),
    st.sampled_from(["hold", "canary", "widen", "promote", "rollback", "pause", "train", "propose"]),
    st.sampled_from(["weights", "prompt", "tools"]),
    st.sampled_from(["1", "2", "3"]),
    st.lists(st.sampled_from(["started", "done", "failed", "rejected", "expired", "undone"]), max_size=2),
    st.booleans(),
)


def records_of(drawn: list[Any]) -> Records:
    """Return the records of a log: decisions, their acts, answers of people."""
    records: Records = []
    for number, (scope, at_us, action, lever, target, states, answered) in enumerate(drawn):
        about = {"tenant": scope.tenant, "agent": scope.agent, "model": scope.model}
        decision = new_decision(
            event_id=f"d{number}", occurred_at_us=at_us, action=action, lever=lever, target=target, **about
        )
        records.append((DECISIONS, decision))
        for place, state in enumerate(states):
            act = new_decision_act(
                event_id=f"d{number}/{state}",
                occurred_at_us=at_us + place,
                decision_id=f"d{number}",
                state=state,
                **about,
            )
            records.append((DECISION_ACTS, act))
        if answered:
            answer = new_approval(
                event_id=f"p{number}",
                occurred_at_us=at_us,
                decision_id=f"d{number}",
                tenant=scope.tenant,
                verdict="approve",
                author="ann",
                role="operator",
            )
            records.append((APPROVALS, answer))
    return records


def serving() -> Serving:
    versions = ModelVersions()
    for version in (1, 2, 3):
        versions.apply_checkpoint(version, checkpoint(version, model="m", parent_version=version - 1 or None))
    for decide_next in (
        lambda: rollout_actions.promote("m", versions, 1),
        lambda: rollout_actions.start_canary("m", versions, 2, 0.5),
    ):
        event = decide_next().event("m", event_id="r", occurred_at_us=1, reason="", author="")
        versions.apply_rollout(event)
    return Serving(versions, {})


SERVING = serving()
STATISTICS = Statistics(
    Position("labeled-trajectories:0=9", NOW_US),
    tuple(OutcomeRow(at, "canary" if at % 2 else "stable", "", at % 4 < 2, "", "f", "", False) for at in range(80)),
)


def decided(log: DecisionLog, scope: Scope) -> Any:
    """Return the history and the decision's record."""
    history = history_of(scope, log, SERVING, owns_weights=scope.agent == "a")
    snapshot = snapshot_of(scope, NOW_US, 0, STATISTICS, SERVING, history, owns_weights=scope.agent == "a")
    decision = decide(snapshot, history, ControlPolicy())
    return history, decision.to_bytes(), event_of(decision)


def folded(records: Records) -> DecisionLog:
    log = DecisionLog()
    for topic, record in records:
        log.add(topic, record)
    return log


@given(st.lists(pulls, max_size=12), st.data())
def test_decisions_are_equal_byte_for_byte_on_replay_and_under_redelivery(
    drawn: list[Any], data: st.DataObject
) -> None:
    records = records_of(drawn)
    repeated = data.draw(st.lists(st.sampled_from(records), max_size=6)) if records else []
    again = data.draw(st.permutations(records + repeated))
    first, second = folded(records), folded(again)
    assert first.in_order() == second.in_order()
    for scope in SCOPES:
        assert decided(first, scope) == decided(second, scope)


@given(st.lists(pulls, max_size=12))
def test_records_of_other_scopes_change_nothing(drawn: list[Any]) -> None:
    own = SCOPES[2]
    records = records_of(drawn)
    kept = [(topic, one) for topic, one in records if topic == APPROVALS or (one["tenant"], one["agent"]) == own[:2]]
    assert decided(folded(records), own) == decided(folded(kept), own)
