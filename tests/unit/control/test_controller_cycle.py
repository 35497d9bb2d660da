"""Test what the controller decides in a cycle: own rules, and statistics that were revised."""

import pytest
from fake_controller import AT_ONCE, Sink, World, of_prompts, of_weights, rows, tick

from stepstream.analytics.success import Attempts
from stepstream.services.control.decide.own_rules import OwnRule
from stepstream.services.control.decide.records import Finding
from stepstream.services.control.statistics import Statistics
from stepstream.topics.catalogue import DECISIONS


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
        return Statistics(Sink().ask(at_us), stable, {"f": Attempts(100, 80)})

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
