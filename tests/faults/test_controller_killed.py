"""Kill the controller, by kill -9 at named lines, in a rollout, an approval and a search: what it does is done once."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_line import stepstream
from control_world import POLICY, World
from recorded_attempts import copies_similar_example
from scripted_chat import ScriptedChat
from stack_fixtures import with_settings
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.services.control.search_process import MODULE as SEARCH
from stepstream.topics.catalogue import DECISION_ACTS, DECISIONS
from stepstream.topics.codec import Codec

APP = "stepstream.services.control.app"
POINTS = {
    "decided": "self._producer.send(record.topic",
    "sent": "self._producer.flush()",
    "committed": "self._log.add_own(sent)",
}
"""Lines of `Controller._publish`: before anything is sent, before the commit, and after it.

Each transaction passes through them, so some are killed at all three and the others at one.
"""
TWO_SHARES = POLICY.replace("shares = [0.5]", "shares = [0.3, 0.5]\nmargin = 0.3")


def of(topic: str, field: str, value: str) -> str:
    """Return the condition that a transaction contains a record."""
    return f"any((one.topic, one.value[{field!r}]) == ({topic!r}, {value!r}) for one in sent if one.topic == {topic!r})"


@pytest.fixture(scope="module")
def stack(
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    settings = with_topics_and_tables(isolated(base_settings, tmp_path_factory.mktemp("killed-control")))
    settings = with_settings(settings, store={"batch_s": 0.05})
    with Stack(settings, ["broker", "registry", "store", "store-writer"]) as stack:
        yield stack


@pytest.fixture
def world(stack: Stack, tmp_path: Path) -> Iterator[World]:
    with closing(Codec(stack.settings)) as codec:
        yield World(stack.settings, codec, tmp_path)


@pytest.fixture
def kill(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Run a controller until it kills itself at a point of a transaction."""
    return lambda point, condition: world.kill_at(APP, POINTS[point], condition, monkeypatch)


def test_a_rollout_is_complete_and_each_step_is_done_once(world: World, kill: Callable[[str, str], None]) -> None:
    model = "steps"
    world.apply_policy(model, TWO_SHARES)
    world.publish(model, 1)
    world.serve(model, 24, 6)
    kill("sent", of("rollouts", "action", "promote"))  # fixes version 1
    assert world.rollouts(model) == []
    kill("committed", of("rollouts", "action", "promote"))
    world.publish(model, 2, 1)
    for point in ("decided", "sent", "committed"):
        kill(point, of(DECISIONS, "action", "canary"))
    for _ in range(40):  # as good: 2 of the stable version for each of the canary
        world.serve(model, 1, 0, "canary")
        world.serve(model, 2, 0)
    kill("committed", of(DECISIONS, "action", "widen"))
    for _ in range(30):
        world.serve(model, 1, 0, "canary")
        world.serve(model, 0, 1)
    kill("committed", of(DECISIONS, "action", "promote"))
    world.serve(model, 0, 40)
    kill("committed", of(DECISIONS, "action", "rollback"))
    before = world.actions(model)
    with world.controller():  # ready after its first cycle
        assert world.actions(model) == before
    expected = [("canary", "2"), ("widen", "2"), ("promote", "2"), ("rollback", "1")]
    assert before == [(*one, "done") for one in expected]
    assert_each_once(world, model)
    served = [(one["action"], one["stable_version"], one["canary_version"]) for one in world.rollouts(model)]
    expected_rollouts = [("promote", 1, None), ("canary", 1, 2), ("canary", 1, 2), ("promote", 2, None)]
    assert served[:-1] == expected_rollouts
    assert served[-1][1:] == (1, None)


def test_an_approved_decision_is_done_once(world: World, kill: Callable[[str, str], None]) -> None:
    model = "asked-and-killed"
    policy = POLICY.replace("watch_s = 0.001", "watch_s = 36000\napprovals = 1")
    world.apply_policy(model, policy)
    world.publish(model, 1)
    world.serve(model, 24, 6)
    kill("committed", of("rollouts", "action", "promote"))
    world.publish(model, 2, 1)
    kill("committed", of(DECISIONS, "action", "canary"))  # before anybody is notified
    [decision] = world.decisions(model)
    assert stepstream(world.settings, "decisions", "approve", decision["event_id"]).status == 0
    for point in ("decided", "sent", "committed"):
        kill(point, of(DECISION_ACTS, "state", "done"))
    assert world.actions(model) == [("canary", "2", "done")]
    with world.controller():
        assert world.actions(model) == [("canary", "2", "done")]
    assert_each_once(world, model)
    assert [one["action"] for one in world.rollouts(model)] == ["promote", "canary"]


def test_a_proposal_is_made_once_and_its_search_ends_with_the_controller(
    world: World, kill: Callable[[str, str], None]
) -> None:
    model, agent = "searched", "searcher"
    world.apply_policy(model)
    world.serve_codes(model, agent, 120)
    answers = threading.Event()

    def answer(request: dict[str, Any]) -> str:
        answers.wait(TIMEOUT_S)
        return copies_similar_example(request)

    with ScriptedChat(answer) as gateway:
        world.settings = with_settings(world.settings, optimise={"gateway_url": gateway.url, "calls": 2000})
        kill("committed", of(DECISIONS, "action", "propose"))
        kill("sent", of(DECISION_ACTS, "state", "started"))
        controller = world.controller()
        with controller:
            wait_until(lambda: bool(gateway.requests))
            [search] = [one for one in controller.children() if SEARCH in one.cmdline()]
            controller.kill()
        gone, _ = psutil.wait_procs([search], TIMEOUT_S)
        assert gone, "the search outlives the controller"
        answers.set()
        kill("decided", of("harnesses", "state", "proposed"))
        kill("committed", of(DECISIONS, "action", "canary"))
    (propose, _, first), (canary, version, second) = world.actions(model)
    assert (propose, first, canary, second) == ("propose", "done", "canary", "done")
    states = [(one["version"], one["state"]) for one in world.harnesses(agent)]
    assert states == [(version, "proposed"), (version, "canary")]
    assert_each_once(world, model)


def assert_each_once(world: World, model: str) -> None:
    """Check that no decision, and no act of one, is on the log twice."""
    for topic in (DECISIONS, DECISION_ACTS):
        ids = [one["event_id"] for _, one in world.records(topic) if one["model"] == model]
        assert len(ids) == len(set(ids)), topic
    ends = [one["decision_id"] for _, one in world.records(DECISION_ACTS) if one["model"] == model]
    started = [
        one["decision_id"]
        for _, one in world.records(DECISION_ACTS)
        if (one["model"], one["state"]) == (model, "started")
    ]
    assert len(ends) - len(started) == len(world.actions(model))
