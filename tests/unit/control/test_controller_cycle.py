"""Test what the controller decides in a cycle: own rules, and statistics that were revised."""

from dataclasses import replace
from typing import Any

import pytest
from fake_controller import AT_ONCE, BY_PEOPLE, Sink, World, of_prompts, of_weights, rows, tick

from stepstream.analytics.success import Attempts
from stepstream.analytics.tools import Calls
from stepstream.services.control.decide.own_rules import OwnRule
from stepstream.services.control.decide.records import Finding
from stepstream.services.control.log import NotCurrent
from stepstream.services.control.statistics import BeforeRow, Statistics, ToolRow
from stepstream.topics.catalogue import APPROVALS, DECISION_ACTS, DECISIONS
from stepstream.topics.events import new_approval


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    tick(monkeypatch)


def test_the_own_rules_of_a_policy_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("", "weights", "pause", "m", "it is Friday", safety=True)
    mine = OwnRule("friday", "shop 1", lambda *_: finding)
    monkeypatch.setattr("stepstream.services.control.policies.load_rules", lambda *_: (mine,))
    world = World(
        "[levers.weights]\nwatch_s = 3600", lambda _, at_us: Statistics(Sink().ask(at_us)), own_rules=("friday",)
    )
    world.controller().run_once()
    assert [(one["rule"], one["reason"]) for one in world.of(DECISIONS)] == [("friday", "it is Friday")]


def test_a_policy_whose_rule_is_not_installed_holds() -> None:
    world = World("[levers.weights]\nenabled = false", of_prompts, own_rules=("friday",))
    world.controller().run_once()
    [held] = world.of(DECISIONS)
    assert (held["action"], held["reason"]) == ("hold", "the rule friday of the policy is not installed")


def test_revised_outcomes_hold_once_also_a_rollback() -> None:
    """Another reward specification turns half of the successes of a promoted version into failures."""
    failures = 0

    def statistics(world: World, at_us: int) -> Statistics:
        if world.serving().versions.served.stable != 2:
            return of_weights(world, at_us)
        stable = rows([], [i >= failures for i in range(40)], name="t")
        return Statistics(Sink().ask(at_us), stable, (BeforeRow("f", "", "", Attempts(100, 80)),))

    world = World(AT_ONCE, statistics)
    controller = world.controller()
    while len(world.decisions().pulls) < 3:
        controller.run_once()
    controller.run_once()
    failures = 20
    controller.run_once()
    assert [one["action"] for one in world.decisions().in_order()] == ["canary", "widen", "promote"]
    held = world.of(DECISIONS)[-1]
    reason = "statistics of an earlier decision were revised: wait for the next snapshot"
    assert (held["action"], held["reason"]) == ("hold", reason)
    controller.run_once()
    assert world.decisions().in_order()[-1]["action"] == "rollback"


def test_each_figure_of_a_decision_names_its_view_and_window() -> None:
    def statistics(world: World, at_us: int) -> Statistics:
        tool = ToolRow("search", "timeout", Calls(1800, 36), Calls(120, 40))
        return replace(of_weights(world, at_us), tools=(tool,), window_us=3, tools_us=2, tools_before_us=1)

    world = World(AT_ONCE, statistics)
    controller = world.controller()
    while not world.decisions().pulls:
        controller.run_once()
    [disabled] = [one for one in world.of(DECISIONS) if one["action"] == "disable"]
    windows = [(one["name"], one["view"], one["since_us"], one["until_us"]) for one in disabled["evidence"]]
    at_us = disabled["occurred_at_us"]
    assert windows == [("error_share", "trajectories", 2, at_us), ("baseline", "tool_hours", 1, 2)]

    judged = World(AT_ONCE, of_weights)
    controller = judged.controller()
    while len(judged.decisions().pulls) < 2:
        controller.run_once()
    canary, widen = judged.decisions().in_order()
    assert {(one["view"], one["since_us"]) for one in widen["evidence"]} == {("trajectories", canary["occurred_at_us"])}
    assert {one["until_us"] for one in widen["evidence"]} == {widen["occurred_at_us"]}


def test_answers_that_did_not_count_are_written_again_with_the_reason() -> None:
    """A client that checks nothing wrote them: a viewer's, a person's second one, one after the decision was done."""
    world = World(BY_PEOPLE.replace("approvals = 1", "approvals = 2"), of_weights)
    controller = world.controller()
    while not world.decisions().pulls:
        controller.run_once()
    [decision] = world.decisions().in_order()

    def answer(author: str, role: str = "operator", verdict: str = "approved") -> None:
        number = len(world.of(APPROVALS))
        record = new_approval(
            event_id=f"answer {number}",
            occurred_at_us=world.of(DECISIONS)[-1]["occurred_at_us"] + number + 1,
            decision_id=decision["event_id"],
            verdict=verdict,
            author=author,
            role=role,
        )
        world.records.append((APPROVALS, record))

    answer("vito", role="viewer")
    answer("anna")
    answer("anna")
    controller.run_once()
    assert world.decisions().state_of(decision) == "awaiting"
    assert world.serving().versions.served.canary is None
    answer("bert")
    controller.run_once()
    assert world.serving().versions.served.canary == 2
    answer("carl", verdict="rejected")
    for _ in range(3):
        controller.run_once()
    refused = [(one["author"], one["refused"]) for one in world.of(APPROVALS) if one["refused"]]
    assert [author for author, _ in refused] == ["vito", "anna", "carl"], "each once"
    reasons = ("yours is viewer", "another person must approve", "already")
    assert all(reason in fault for reason, (_, fault) in zip(reasons, refused, strict=True)), refused


@pytest.mark.parametrize(("is_frozen", "state"), [(False, "done"), (True, "failed")])
def test_the_kill_switch_stops_what_people_have_approved(is_frozen: bool, state: str) -> None:
    world = World(BY_PEOPLE, of_weights)
    while not world.decisions().pulls:
        world.controller().run_once()
    world.approve()
    world.is_frozen = is_frozen
    world.controller().run_once()
    [act] = world.of(DECISION_ACTS)
    assert (act["state"], act["reason"]) == (state, "the agent is frozen" if is_frozen else "")
    assert world.serving().versions.served.canary == (None if is_frozen else 2)


def test_the_kill_switch_lets_people_take_something_back(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = OwnRule("friday", "shop 1", lambda *_: Finding("", "tools", "disable", "search", "it is Friday"))
    monkeypatch.setattr("stepstream.services.control.policies.load_rules", lambda *_: (mine,))
    world = World("[levers.tools]\napprovals = 1", of_weights, own_rules=("friday",))
    world.controller().run_once()
    world.approve()
    world.is_frozen = True
    world.controller().run_once()
    [act] = world.of(DECISION_ACTS)
    assert (act["state"], act["description"][:6]) == ("done", "search")


def test_a_rejected_promotion_ends_the_canary_at_the_next_look() -> None:
    world = World(BY_PEOPLE, of_weights)
    controller = world.controller()
    while not (pulls := world.decisions().in_order()) or pulls[-1]["action"] != "promote":
        world.approve()
        controller.run_once()
    reject(world, pulls[-1])
    controller.run_once()
    ended = world.of(DECISIONS)[-1]
    reason = f"a person rejected its promotion (decision {pulls[-1]['event_id']})"
    assert (ended["action"], ended["rule"], ended["reason"]) == ("rollback", "canary_without_result", reason)
    served = world.serving().versions.served
    assert (served.stable, served.canary, served.taken_back) == (1, None, frozenset())


def reject(world: World, decision: Any) -> None:
    """Let a person reject a decision."""
    identity, at_us = decision["event_id"], decision["occurred_at_us"]
    answer = new_approval(
        event_id="no", occurred_at_us=at_us, decision_id=identity, verdict="rejected", author="bob", role="operator"
    )
    world.records.append((APPROVALS, answer))


def test_people_are_notified_of_a_committed_decision_also_if_the_compacted_topics_lag() -> None:
    sent: list[tuple[str, str]] = []

    class Receiver:
        def send(self, decision: Any, state: str, _description: str) -> None:
            sent.append((decision["action"], state))

    world = World(AT_ONCE, of_weights)
    world.webhook, world.follow_fault = Receiver(), NotCurrent("the compacted topics were not read to their ends")
    for _ in range(2):  # the first look fixes version 1
        with pytest.raises(NotCurrent):
            world.controller().run_once()
    assert [one["action"] for one in world.decisions().in_order()] == ["canary"]
    assert sent == [("canary", "done")]
