"""Test the controller as real processes over a real log and store: what it decides, kills, and two at once."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sample_records import checkpoint, trajectory
from service_process import ServiceProcess
from stack_fixtures import with_settings
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings
from stepstream.embedded.ports import free_block
from stepstream.embedded.ready import HttpReady
from stepstream.embedded.stack import Stack
from stepstream.services.control.history import DecisionLog
from stepstream.topics.catalogue import (
    APPROVALS,
    CHECKPOINTS,
    CONTROL_POLICIES,
    DECISION_ACTS,
    DECISIONS,
    LABELED_TRAJECTORIES,
    ROLLOUTS,
)
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import Decision, Rollout, Track, new_control_policy
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer

MODULE = "stepstream.services.control"
POLICY = """
min_trajectories = 20
change_limit = 5.0
[canary]
shares = [0.5]
alpha = 0.05
[levers.prompt]
blast_radius = 0.5
[levers.skills]
blast_radius = 0.5
[levers.memory]
blast_radius = 0.5
[levers.weights]
blast_radius = 0.5
cooldown_s = 0
watch_s = 0.001
[rules]
gradient = false
coverage = false
"""
_SECOND_US = 1_000_000


class World:
    """A log to which a test writes what a fleet would, and from which it reads what the controller did."""

    def __init__(self, settings: Settings, codec: Codec, folder: Path) -> None:
        self.settings = with_settings(settings, control={"interval_s": 0.2})
        self._codec, self._folder = codec, folder
        self._producer = EventProducer(settings.kafka, codec, "test", linger_ms=0)
        self._numbers = itertools.count()

    def write(self, topic: str, key: str, record: Any) -> None:
        self._producer.send(topic, key, record)
        self._producer.flush(TIMEOUT_S)

    def apply_policy(self, model: str, text: str = POLICY) -> None:
        document = f'tenant = "default"\nmodels = ["{model}"]\n{text}'
        record = new_control_policy(
            event_id=new_event_id(),
            occurred_at_us=now_us(),
            tenant="default",
            name=model,
            version=1,
            document=document,
            hash="",
        )
        self.write(CONTROL_POLICIES, model, record)

    def publish(self, model: str, version: int, parent: int | None = None) -> None:
        record = checkpoint(version, now_us(), event_id=new_event_id(), model=model, parent_version=parent)
        self.write(CHECKPOINTS, f"{model}@{version}", record)

    def serve(self, model: str, successes: int, failures: int, track: Track = "stable") -> None:
        """Write closed trajectories that begin now."""
        for i in range(successes + failures):
            name = f"{model}-{next(self._numbers)}"
            at = now_us()
            label = trajectory(
                name,
                event_id=new_event_id(),
                occurred_at_us=at,
                opened_at_us=at,
                started_at_us=at,
                ended_at_us=at,
                model=model,
                agent="a",
                track=track,
                task_id="easy/1",
                success=i < successes,
            )
            self._producer.send(LABELED_TRAJECTORIES, name, label)
        self._producer.flush(TIMEOUT_S)

    def decisions(self, model: str) -> list[Decision]:
        """Return the decisions about a model other than `hold`, in order, done or not."""
        return [one for one in self.read().in_order() if one["model"] == model]

    def actions(self, model: str) -> list[tuple[str, str, str]]:
        """Return action, target and state of the decisions."""
        log = self.read()
        return [(one["action"], one["target"], log.state_of(one)) for one in log.in_order() if one["model"] == model]

    def read(self) -> DecisionLog:
        log = DecisionLog()
        for topic, record in self.records(DECISIONS, DECISION_ACTS, APPROVALS):
            log.add(topic, record)
        return log

    def rollouts(self, model: str) -> list[Rollout]:
        return [record for _, record in self.records(ROLLOUTS) if record["model"] == model]

    def records(self, *topics: str) -> Iterator[tuple[str, Any]]:
        with EventConsumer(self.settings.kafka, self._codec) as consumer:
            consumer.follow(topics)
            while not consumer.is_caught_up():
                for event in consumer.poll(1000, 0.05):
                    yield event.topic, event.record

    def controller(self, name: str = "control", under: tuple[str, ...] = ()) -> ServiceProcess:
        port = free_block(1)
        settings = with_settings(self.settings, metrics={"port": port})
        ready = HttpReady(f"http://127.0.0.1:{port}/ready")
        return ServiceProcess(MODULE, settings, ready, self._folder / f"{name}.log", under=under)


@pytest.fixture(scope="module")
def stack(
    base_settings: Settings, with_topics: Callable[[Settings], Settings], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    from stepstream.embedded.addresses import isolated

    settings = with_topics(isolated(base_settings, tmp_path_factory.mktemp("control")))
    settings = with_settings(settings, store={"batch_s": 0.05})
    with Stack(settings, ["broker", "registry", "store", "store-writer"]) as stack:
        yield stack


@pytest.fixture
def world(stack: Stack, tmp_path: Path) -> Iterator[World]:
    with closing(Codec(stack.settings)) as codec:
        yield World(stack.settings, codec, tmp_path)


def put_out(world: World, model: str) -> None:
    """Bring version 2 of a model on the canary: version 1 serves before, and a controller runs."""
    world.publish(model, 1)
    world.serve(model, 24, 6)
    wait_until(lambda: [one["stable_version"] for one in world.rollouts(model)] == [1], "version 1 is fixed")
    world.publish(model, 2, 1)
    wait_until(lambda: world.actions(model) == [("canary", "2", "done")], lambda: f"{world.actions(model)}")


def test_a_better_version_is_promoted_and_taken_back_when_it_turns_bad(world: World) -> None:
    world.apply_policy("good")
    with world.controller():
        put_out(world, "good")
        for _ in range(30):
            world.serve("good", 1, 0, "canary")
            world.serve("good", 0, 1)
        wait_until(lambda: ("promote", "2", "done") in world.actions("good"), lambda: f"{world.actions('good')}")
        world.serve("good", 0, 40)
        expected = [("canary", "2", "done"), ("promote", "2", "done"), ("rollback", "1", "done")]
        wait_until(lambda: world.actions("good") == expected, lambda: f"{world.actions('good')}")
    newest = world.rollouts("good")[-1]
    assert (newest["stable_version"], newest["canary_version"]) == (1, None)
    assert newest["author"] == "control plane"
    rollback = world.decisions("good")[-1]
    assert rollback["rule"] == "change_after_promotion"
    assert rollback["event_id"] in newest["reason"]


def test_of_two_controllers_one_acts_and_the_other_goes_on_when_it_is_killed(world: World) -> None:
    world.apply_policy("two")
    first = world.controller("first")
    with first, world.controller("second") as second:
        put_out(world, "two")
        assert "this controller acts" not in second.log_text
        first.kill()
        for _ in range(30):
            world.serve("two", 1, 0, "canary")
            world.serve("two", 0, 1)
        expected = [("canary", "2", "done"), ("promote", "2", "done")]
        wait_until(lambda: world.actions("two") == expected, lambda: f"{world.actions('two')}")
        assert "this controller acts" in second.log_text
    decided = [one["event_id"] for topic, one in world.records(DECISIONS) if one["model"] == "two"]
    done = [one["event_id"] for topic, one in world.records(DECISION_ACTS) if one["model"] == "two"]
    assert len(decided) == len(set(decided))
    assert len(done) == len(set(done)) == 2, "each once"
    assert [one["action"] for one in world.rollouts("two")] == ["promote", "canary", "promote"]
