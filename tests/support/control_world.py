"""Give a log and store to which a test writes what a fleet would, and controllers as real processes over them."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_records import checkpoint, step, trajectory
from service_process import ServiceProcess
from stack_fixtures import with_settings
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings
from stepstream.embedded.ports import free_block
from stepstream.embedded.ready import HttpReady
from stepstream.services.control.history import DecisionLog
from stepstream.topics.catalogue import (
    APPROVALS,
    CHECKPOINTS,
    CONTROL_POLICIES,
    DECISION_ACTS,
    DECISIONS,
    GOVERNED_STEPS,
    HARNESSES,
    LABELED_TRAJECTORIES,
    ROLLOUTS,
)
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import (
    Decision,
    Harness,
    Message,
    Rollout,
    Track,
    new_control_policy,
    new_governance,
    new_labeled_step,
    new_message,
    new_sampling,
    new_tool_call,
)
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
WORDS = ("apple", "breeze", "castle", "dragon", "ember")
KILL_SITE = Path(__file__).parent / "kill_site"


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

    def serve_codes(self, model: str, agent: str, n: int) -> None:
        """Write closed trajectories of `n` tasks about the code of a word; every third fails by a malformed call."""
        for i in range(n):
            is_right = i % 3 > 0
            call = new_tool_call(call_id="1", name="look_up", arguments="{", error="invalid_arguments")
            calls = [] if is_right else [call]
            response = new_message(role="assistant", content=f"code-{i % 5}" if is_right else "", tool_calls=calls)
            question = f"What is the code of {WORDS[i % 5]}? Ticket {i}."
            self._send_answer(model, agent, f"codes/{i}", question, response, success=is_right)
        self._producer.flush(TIMEOUT_S)

    def serve_texts(self, model: str, agent: str, text: str, n: int) -> None:
        """Write closed, successful trajectories of `n` tasks with one step, which answers with `text`."""
        response = new_message(role="assistant", content=text)
        sampling = new_sampling(temperature=0.0, max_tokens=8)
        for i in range(n):
            self._send_answer(model, agent, f"texts/{i}", f"Question {i}?", response, success=True, sampling=sampling)
        self._producer.flush(TIMEOUT_S)

    def _send_answer(
        self,
        model: str,
        agent: str,
        task_id: str,
        question: str,
        response: Message,
        *,
        success: bool,
        **fields: Any,
    ) -> None:
        """Send a closed trajectory of one step, which answers a question: the governed step and its label.

        `fields` are others of the step.
        """
        name, at = f"{model}-{task_id}", now_us()
        common: Any = {"model": model, "agent": agent, "task_id": task_id}
        record = step(
            name,
            0,
            at,
            messages=[new_message(role="user", content=question)],
            response=response,
            governed=new_governance(source_event_id=f"{name}/source", job="govern@1"),
            **fields,
            **common,
        )
        reward = float(success)
        labelled = new_labeled_step(
            step_index=0,
            event_id=record["event_id"],
            reward=reward,
            return_to_go=reward,
            components=[],
            tool_calls=response["tool_calls"],
        )
        times: Any = {"occurred_at_us": at, "opened_at_us": at, "started_at_us": at, "ended_at_us": at}
        label = trajectory(name, event_id=new_event_id(), success=success, steps=[labelled], **times, **common)
        self._producer.send(GOVERNED_STEPS, name, record)
        self._producer.send(LABELED_TRAJECTORIES, name, label)

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

    def harnesses(self, agent: str) -> list[Harness]:
        return [record for _, record in self.records(HARNESSES) if record["agent"] == agent]

    def records(self, *topics: str) -> Iterator[tuple[str, Any]]:
        with EventConsumer(self.settings.kafka, self._codec) as consumer:
            consumer.follow(topics)
            while not consumer.is_caught_up():
                for event in consumer.poll(1000, 0.05):
                    yield event.topic, event.record

    def controller(self, name: str = "control") -> ServiceProcess:
        port = free_block(1)
        settings = with_settings(self.settings, metrics={"port": port})
        ready = HttpReady(f"http://127.0.0.1:{port}/ready")
        return ServiceProcess(MODULE, settings, ready, self._folder / f"{name}.log")

    def kill_at(self, module: str, line: str, condition: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run a controller until it kills itself before a line of a module, where the condition on its names holds."""
        flag = self._folder / "kill"
        flag.touch()
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join([str(KILL_SITE), os.environ.get("PYTHONPATH", "")]))
            patch.setenv("KILL_BEFORE", f"{module}|{line}|{flag}|{condition}")
            process = self.controller("killed")
            process.launch()
        try:
            wait_until(lambda: process.status is not None, lambda: f"it runs:\n{process.log_text}")
            assert process.status == -9, process.log_text
        finally:
            process.kill()


def put_out(world: World, model: str) -> None:
    """Bring version 2 of a model on the canary: version 1 serves before, and a controller runs."""
    world.publish(model, 1)
    world.serve(model, 24, 6)
    wait_until(lambda: [one["stable_version"] for one in world.rollouts(model)] == [1], "version 1 is fixed")
    world.publish(model, 2, 1)
    wait_until(lambda: world.actions(model) == [("canary", "2", "done")], lambda: f"{world.actions(model)}")
