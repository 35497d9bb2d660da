"""Test searches for a proposal beside the controller: their end, their time and their budget over crashes."""

from typing import Any

import pytest
from fake_controller import SCENARIOS, World, tick

from stepstream.config import Settings
from stepstream.services.control.search_process import Spent
from stepstream.topics.catalogue import DECISION_ACTS, DECISIONS, HARNESSES
from stepstream.topics.events import new_harness


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    tick(monkeypatch)


def test_a_frozen_agent_ends_the_search() -> None:
    policy, statistics, _ = SCENARIOS["proposed"]
    world = World(policy, statistics)
    controller = world.controller()
    while not world.of(DECISION_ACTS):
        controller.run_once()
    world.is_frozen = True
    controller.run_once()
    ends = [(one["state"], one["reason"]) for one in world.of(DECISION_ACTS)]
    assert ends == [("started", ""), ("failed", "the agent is frozen")]
    assert not controller._proposals._process.decision_id


def test_a_search_that_takes_too_long_fails_also_after_a_restart() -> None:
    policy, statistics, _ = SCENARIOS["proposed"]
    world = World(policy, statistics)
    controller = world.controller()
    while not world.of(DECISION_ACTS):
        controller.run_once()
    [began] = world.of(DECISION_ACTS)
    began["occurred_at_us"] -= round(Settings().control.propose_timeout_s * 1e6)
    world.controller().run_once()
    ended = world.of(DECISION_ACTS)[1]
    assert (ended["state"], "raise control.propose_timeout_s" in ended["reason"]) == ("failed", True)


def test_controllers_that_crash_during_a_search_spend_its_budget_once() -> None:
    policy, statistics, _ = SCENARIOS["proposed"]
    world = World(policy, statistics)
    limits = Settings().optimise
    world.spends = Spent(limits.calls * 2 // 5, 1000)
    world.controller().run_once()  # decides
    starts, [decision] = 0, world.of(DECISIONS)
    while world.decisions().state_of(decision) != "failed":
        starts += 1
        controller = world.controller()
        controller.run_once()  # starts the search
        controller.run_once()  # writes what it has spent, then crashes
        assert starts < 9
    acts = world.decisions().acts_of(decision["event_id"])
    spent = [(one["state"], one["calls"], one["tokens"]) for one in acts]
    of_one = limits.calls * 2 // 5
    assert spent[:-1] == [("started", 0, 0), *[("started", i * of_one, i * 1000) for i in (1, 2, 3)]]
    assert f"after {3 * of_one} of {limits.calls} calls" in acts[-1]["reason"]
    assert len({one["event_id"] for one in acts}) == len(acts)


def test_a_proposal_on_a_harness_version_that_was_replaced_fails() -> None:
    policy, statistics, _ = SCENARIOS["proposed"]
    world = World(policy, statistics)
    controller = world.controller()
    while not world.of(DECISION_ACTS):
        controller.run_once()
    other = replace_stable()
    world.records.append((HARNESSES, other))
    while len(world.of(DECISION_ACTS)) < 2:
        controller.run_once()
    ended = world.of(DECISION_ACTS)[1]
    assert (ended["state"], "became stable during the search" in ended["reason"]) == ("failed", True)
    assert world.of(HARNESSES) == [other]


def replace_stable() -> Any:
    return new_harness(
        event_id="",
        occurred_at_us=0,
        tenant="default",
        agent="a",
        version="other",
        instructions="Other.",
        state="stable",
        revision=1,
    )
