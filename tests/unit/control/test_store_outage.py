"""The controller while the statistics store does not answer: one decision to hold for each outage and scope."""

from typing import Any

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from fake_controller import AT_ONCE, SCOPE, World, of_weights, tick

from stepstream.jobs.clickhouse.connection import StoreUnavailableError
from stepstream.services.control.app import Controller
from stepstream.services.control.decide.decide import NO_STORE
from stepstream.services.control.scope import scope_of
from stepstream.topics.catalogue import DECISIONS

AWAY = StoreUnavailableError("ClickHouse at http://store cannot be reached")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    tick(monkeypatch)


def fail(controller: Controller, world: World, fault: Exception = AWAY, passes: int = 1) -> None:
    """Decide while the store does not answer."""
    world.store_fault = fault
    for _ in range(passes):
        with pytest.raises(type(fault)):
            controller.run_once()
    world.store_fault = None


def holds(world: World) -> list[Any]:
    """Return the decisions to hold by an outage."""
    return [one for one in world.of(DECISIONS) if one["reason"] == NO_STORE]


def started() -> tuple[World, Controller]:
    world = World(AT_ONCE, of_weights)
    controller = world.controller()
    controller.run_once()
    return world, controller


@pytest.mark.parametrize("fault", [AWAY, DatabaseError("too many simultaneous queries")])
def test_an_outage_is_one_decision_to_hold(fault: Exception) -> None:
    world, controller = started()
    before = world.of(DECISIONS)[-1]
    fail(controller, world, fault, passes=3)
    fail(world.controller(), world, fault, passes=2)
    [hold] = holds(world)
    assert (hold["action"], scope_of(hold), hold["rule"], hold["lever"]) == ("hold", SCOPE, "", None)
    assert hold["policy_hash"] == before["policy_hash"]
    assert hold["occurred_at_us"] > before["occurred_at_us"]


def test_the_controller_goes_on_when_the_store_is_back_and_the_next_outage_is_another_decision() -> None:
    world, controller = started()
    fail(controller, world)
    while len(world.decisions().pulls) < 3:
        controller.run_once()
    assert [one["action"] for one in world.decisions().in_order()] == ["canary", "widen", "promote"]
    fail(controller, world)
    first, second = holds(world)
    assert first["event_id"] != second["event_id"]


def test_an_outage_of_a_quiet_agent_is_noted_again_after_its_end() -> None:
    world = World("[levers.weights]\nenabled = false", of_weights)
    controller = world.controller()
    for _ in range(2):
        controller.run_once()
        fail(controller, world, passes=2)
    controller.run_once()
    assert [one["reason"] == NO_STORE for one in world.of(DECISIONS)] == [False, True, False, True, False]


def test_two_controllers_give_an_outage_the_same_id() -> None:
    """The second one has read the same log at another time."""
    world, controller = started()
    other = World(AT_ONCE, of_weights)
    other.records = list(world.records)
    second = other.controller()
    for _ in range(5):
        fail(controller, world)
    fail(second, other)
    [one], [same] = holds(world), holds(other)
    assert one["event_id"] == same["event_id"]
    assert one["occurred_at_us"] != same["occurred_at_us"]


def test_a_store_that_fails_during_a_pass_holds_the_scopes_that_were_not_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, controller = started()
    monkeypatch.setattr("fake_controller.Queries.scopes", lambda *_: [SCOPE])
    fail(controller, world, passes=2)
    assert len(holds(world)) == 1


def test_a_clock_behind_that_of_the_controller_before_repeats_no_hold() -> None:
    world, _ = started()
    world.records[-1][1]["occurred_at_us"] *= 2
    fail(world.controller(), world, passes=2)
    fail(world.controller(), world)
    assert len(holds(world)) == 1


def test_nothing_is_recorded_for_agents_without_a_recent_decision() -> None:
    world = World(AT_ONCE, of_weights)
    fail(world.controller(), world)
    assert world.records == []
    world.controller().run_once()
    for topic, one in world.records:
        if topic == DECISIONS:
            one["occurred_at_us"] = 1
    fail(world.controller(), world)
    assert holds(world) == []
