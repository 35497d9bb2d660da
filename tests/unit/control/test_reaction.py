"""Test how soon the controller looks at a version on trial, and how few harmed trajectories it needs."""

from typing import Any, cast

import numpy as np
import pytest
from fake_controller import AT_ONCE, SCOPE, Sink, World, of_weights, rows, tick

from stepstream.services.control.decide.canary import judge, state_of
from stepstream.services.control.decide.policy import CanaryPolicy
from stepstream.services.control.decide.records import Canary, Outcome, Snapshot, Source
from stepstream.services.control.scope import Scope
from stepstream.services.control.statistics import Statistics

CANARY = Canary("weights", "2", "1", 1, 0.1)


def action(*outcomes: Outcome) -> str:
    stable = [Outcome("stable", True)] * 18
    snapshot = Snapshot("default", "a", "m", 9, 9, Source("v", "1"), (*outcomes, *stable))
    return judge(snapshot, CANARY, CanaryPolicy()).action


def bad(cluster: str = "") -> Outcome:
    return Outcome("canary", False, cluster, harmed=True)


def test_two_of_two_harmed_trajectories_end_a_canary_and_one_does_not() -> None:
    assert action(bad()) == "hold"
    assert action(bad(), bad()) == "rollback"
    assert action(bad(), bad(), Outcome("canary", True)) == "rollback", "the largest e-value counts"


def test_two_harmed_trajectories_of_one_user_are_no_proof() -> None:
    assert action(bad("u:anna"), bad("u:anna")) == "hold"
    assert action(bad("u:anna"), bad("u:bert")) == "rollback"


def test_a_violation_counts_although_nobody_judges_the_outcome() -> None:
    unjudged = Outcome("canary", None, failure="unjudged")
    violation = Outcome("canary", None, failure="unjudged", harmed=True)
    assert action(violation, violation) == "rollback"
    assert action(*[unjudged] * 60, violation, violation) == "hold", "those without harm are in the share"
    state = state_of([*[unjudged, Outcome("canary", True), Outcome("stable", True)] * 9], CanaryPolicy(), 0.01)
    assert (state.canary.n, state.compared) == (9, 9), "they are neither judged nor waited for"


def test_a_version_within_the_limit_seldom_trips_the_test_of_harm() -> None:
    rng = np.random.default_rng(11)
    policy = CanaryPolicy()
    runs = [[Outcome("canary", None, harmed=bool(one)) for one in rng.random(300) < 0.05] for _ in range(400)]
    closed = [[Outcome("canary", True, harmed=one.harmed) for one in run] for run in runs]
    tripped = sum(state_of(run, policy, 0.01).harm >= 1 / policy.rollback_alpha for run in closed)
    assert tripped <= 0.05 * len(runs)


class Clock:
    """Monotonic time that passes in waits only, and a stop that never comes."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    tick(monkeypatch)
    clock = Clock()
    monkeypatch.setattr("stepstream.services.control.app.time.monotonic", clock.monotonic)
    return clock


def test_while_a_version_is_tried_the_controller_decides_when_the_tables_have_grown(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    grows = False

    def statistics(world: World, at_us: int) -> Statistics:
        if world.serving().versions.served.canary is None:
            return of_weights(world, at_us)
        stable = rows([], [True] * 40)
        harmed = tuple(one._replace(track="canary", success=False, harmed=True) for one in rows([], [True] * 2))
        return Statistics(Sink().ask(at_us), (*harmed, *stable) if grows else stable)

    monkeypatch.setattr(Sink, "has_moved", lambda _self: grows)
    world = World(AT_ONCE, statistics)
    controller = world.controller()
    for _ in range(2):
        controller.run_once()
    assert [one["action"] for one in world.decisions().in_order()] == ["canary"]
    controller.wait(cast(Any, clock))
    assert clock.now == world.settings.control.interval_s, "nothing has grown"
    assert [one["action"] for one in world.decisions().in_order()] == ["canary"]
    grows = True
    decided_at: list[float] = []
    publish = controller._publish

    def note(records: Any) -> None:
        decided_at.append(clock.now)
        publish(records)

    monkeypatch.setattr(controller, "_publish", note)
    began = clock.now
    controller.wait(cast(Any, clock))
    assert [one["action"] for one in world.decisions().in_order()] == ["canary", "rollback"]
    assert decided_at[0] - began == world.settings.control.canary_interval_s


def test_without_a_version_on_trial_nothing_is_asked_before_the_interval_is_over(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def has_moved(_self: Sink) -> bool:
        asked.append(clock.now)
        return False

    monkeypatch.setattr(Sink, "has_moved", has_moved)
    world = World("[levers.weights]\nenabled = false", of_weights)
    controller = world.controller()
    controller.run_once()
    controller.wait(cast(Any, clock))
    assert (asked, clock.now) == ([], world.settings.control.interval_s)


def test_a_version_on_trial_goes_first(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [Scope("default", f"{letter}{SCOPE.agent}", "other") for letter in "0z"]
    monkeypatch.setattr("fake_controller.Queries.scopes", lambda _self, _since: sorted([*others, SCOPE]))
    order: list[Scope] = []
    world = World(AT_ONCE, of_weights)
    controller = world.controller()
    asked = controller._queries.statistics

    def note(scope: Scope, *rest: Any) -> Statistics:
        order.append(scope)
        return asked(scope, *rest)

    monkeypatch.setattr(controller._queries, "statistics", note)
    controller._watched = {SCOPE}
    controller.run_once()
    assert order == [SCOPE, *others]
