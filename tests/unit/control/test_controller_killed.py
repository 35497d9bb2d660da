"""Kill the controller at every step of a rollout, in process: what it had decided is done once, and in order."""

from pathlib import Path

import pytest
from fake_controller import SCENARIOS, Killed, World, tick
from stack_fixtures import with_settings

from stepstream.services.control.decide.decide import decide
from stepstream.services.control.decide.event import event_of
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.simulate.recorded import read_lines
from stepstream.topics.catalogue import DECISION_ACTS, DECISIONS, HARNESSES, ROLLOUTS


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    tick(monkeypatch)


def run(name: str, kill_at: int = 0) -> World:
    """Run a controller, after its death the next one, until the rollout is complete and for two more cycles."""
    policy, statistics, expected = SCENARIOS[name]
    world = World(policy, statistics, kill_at)
    controller = world.controller()
    at_rest = 0
    while at_rest < 3:
        try:
            controller.run_once()
        except Killed:
            controller = world.controller()
        world.approve()
        known = world.decisions()
        states = [known.state_of(one) for one in known.in_order()]
        assert len(states) <= len(expected), f"killed at step {kill_at}"
        at_rest += states == ["done"] * len(expected)
    return world


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_controller_killed_at_any_step_does_each_decision_once(name: str) -> None:
    whole = run(name)
    assert whole.steps.passed > 15
    for kill_at in range(1, whole.steps.passed + 1):
        world = run(name, kill_at)
        known = world.decisions()
        done = [f"{one['action']} {one['target']}" for one in known.in_order()]
        assert done == SCENARIOS[name][2], f"killed at step {kill_at}"
        acts = [one for one in world.of(DECISION_ACTS) if one["state"] != "started"]
        ends = [one["decision_id"] for one in acts if not one["evidence"]]
        assert sorted(ends) == sorted(known.pulls), f"killed at step {kill_at}"
        assert len(acts) - len(ends) == (name == "replayed first"), f"killed at step {kill_at}"
        for topic, fields in ((ROLLOUTS, ("action", "stable_version", "canary_version")), (HARNESSES, ("state",))):
            kept = [[one[field] for field in fields] for one in world.of(topic)]
            assert kept == [[one[field] for field in fields] for one in whole.of(topic)], f"killed at step {kill_at}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_replay_of_recorded_inputs_decides_what_is_on_the_log_byte_for_byte(name: str, tmp_path: Path) -> None:
    policy, statistics, expected = SCENARIOS[name]
    world = World(policy, statistics)
    world.settings = with_settings(world.settings, control={"record": tmp_path})
    controller = world.controller()
    while len(world.decisions().pulls) < len(expected):
        controller.run_once()
        world.approve()
    lines = [line for file in sorted(tmp_path.iterdir()) for line in file.read_bytes().splitlines()]
    parsed = ControlPolicy.parse(world.policy)
    again = {one.id: one for one in (decide(each.snapshot, each.history, parsed) for each in read_lines(lines))}
    for decision in world.of(DECISIONS):
        assert event_of(again[decision["event_id"]]) == decision
