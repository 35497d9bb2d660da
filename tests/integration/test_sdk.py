"""Test the SDK with a real broker and registry: its events arrive valid and complete, even after a crash."""

import asyncio
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from gateway_fixtures import codec, read_topic
from log_reading import read_to_end
from sample_records import checkpoint
from stack_fixtures import with_settings
from waiting import TIMEOUT_S, wait_until

from stepstream import sdk
from stepstream.config import Settings, environment_of
from stepstream.crypto.key_ring import sealing_codec
from stepstream.crypto.master_key import load_master_key
from stepstream.delivery.confirmed_producer import ConfirmedProducer, NotDelivered
from stepstream.delivery.types import Event
from stepstream.jobs.governance.validation import check_envelope, check_feedback, check_step
from stepstream.jobs.labels.sequences import join_sequences
from stepstream.sdk.handle import TrajectoryInfo
from stepstream.sdk.recorder import Recorder
from stepstream.topics.codec import Codec
from stepstream.topics.ids import now_us
from stepstream.topics.producer import EventProducer


@pytest.fixture
def recorded_settings(registry_settings: Settings) -> Iterator[Settings]:
    sdk.configure(registry_settings)
    yield registry_settings
    sdk.close()


@sdk.tool
def add(a: int, b: int) -> int:
    return a + b


@sdk.tool
async def fail() -> None:
    raise LookupError("nothing there")


ANSWER = {
    "role": "assistant",
    "content": "I add",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}],
}


def one_step(t: sdk.Trajectory, prompt: list[int], response: list[int], *messages: Any) -> None:
    with t.step(messages, model="demo") as s:
        s.response(
            ANSWER,
            prompt_token_ids=prompt,
            token_ids=response,
            logprobs=[-0.5] * len(response),
            policy_version=2,
        )
        add(1, b=2)
        s.reward("format", 1.0)


async def work(t: sdk.Trajectory) -> str:
    async with t.step(["again"], model="demo") as s:
        with pytest.raises(LookupError):
            await fail()
        async with t.sub_agent("helper", task_id="part") as child:
            async with child.step(["help"], model="demo") as inner:
                inner.response("done")
            child.reward("outcome", True)
        s.response("so it is")
    return child.id


def test_trajectories_from_sync_and_async_code_arrive_as_valid_events(recorded_settings: Settings) -> None:
    with sdk.trajectory("task", agent="clerk", group_id="g") as t:
        one_step(t, [1, 2], [3], "q")
        one_step(t, [1, 2, 3, 4], [5, 6], "q", ANSWER, "and?")
        helper = asyncio.run(work(t))
        t.reward("outcome", 1.0)
    assert sdk.flush(TIMEOUT_S) == 0
    steps = read_topic(recorded_settings, "steps", t.id, 3)
    feedback = read_topic(recorded_settings, "feedback", t.id, 4)
    (inner,) = read_topic(recorded_settings, "steps", helper, 1)
    for event in [*steps, inner]:
        check_envelope(event, event["trajectory_id"].encode(), now_us(), 0)
        check_step(event)
    for event in feedback:
        check_envelope(event, t.id.encode(), now_us(), 0)
        check_feedback(event)
    assert [step["step_index"] for step in steps] == [0, 1, 2]
    assert (steps[1]["prompt_shared_messages"], steps[1]["prompt_shared_tokens"]) == (2, 3)
    assert join_sequences(steps).text == [False, False, True]  # the shared tokens are verified
    assert [call["result"] for call in steps[0]["response"]["tool_calls"]] == ["3"]
    assert [call["error"] for call in steps[2]["response"]["tool_calls"]] == ["LookupError"]
    assert (inner["parent_trajectory_id"], inner["parent_step_index"], inner["task_id"]) == (t.id, 2, "part")
    assert [(entry["name"], entry["value"]) for entry in feedback[-2:]] == [("outcome", 1.0), ("end", None)]
    assert (feedback[-1]["end"], feedback[-1]["last_step_index"]) == ("terminated", 2)
    active = sdk.recorder()
    assert active is not None
    wait_until(lambda: active.counts["delivered"] == 10)


def read(settings: Settings, codec: Codec, trajectory: str) -> list[Any]:
    return [event.record for event in read_to_end(settings, codec, "steps") if event.key == trajectory]


def test_a_persons_messages_are_sealed_and_can_be_opened(registry_settings: Settings) -> None:
    settings = registry_settings
    load_master_key(settings)  # creates the master key
    sdk.configure(settings)
    with sdk.trajectory(user=f"ann-{uuid.uuid4()}") as t:
        for number in range(3):
            with t.step([f"secret {number}"]) as s:
                s.response("sealed")
    assert sdk.flush(TIMEOUT_S) == 0
    sdk.close()
    with closing(Codec(settings)) as plain, closing(sealing_codec(settings)) as opening:
        sealed, opened = read(settings, plain, t.id), read(settings, opening, t.id)
    assert [(bool(step["seal_key"]), step["messages"]) for step in sealed] == [(True, [])] * 3
    assert [step["messages"][0]["content"] for step in opened] == ["secret 0", "secret 1", "secret 2"]


def test_a_killed_program_loses_no_recorded_step(registry_settings: Settings, tmp_path: Path) -> None:
    unreachable = with_settings(
        registry_settings, kafka={"bootstrap": "127.0.0.1:1"}, sdk={"spool": tmp_path / "spool"}
    )
    code = (
        "import os, signal\nfrom stepstream import sdk\n"
        "with sdk.trajectory(trajectory_id='{id}') as t:\n"
        "    for number in range(50):\n"
        "        with t.step([str(number)]) as s: s.response('x')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    trajectory = str(uuid.uuid4())
    code = code.replace("{id}", trajectory)
    killed = subprocess.run([sys.executable, "-c", code], env=environment_of(unreachable), timeout=TIMEOUT_S)
    assert killed.returncode == -9
    sdk.configure(with_settings(registry_settings, sdk={"spool": tmp_path / "spool"}))
    with sdk.trajectory():
        pass
    steps = read_topic(registry_settings, "steps", trajectory, 50)
    sdk.close()
    assert [step["step_index"] for step in steps] == list(range(50))


async def test_deliver_returns_after_acknowledgement_or_raises(recorded_settings: Settings) -> None:
    active = sdk.recorder()
    assert active is not None
    confirmed = ConfirmedProducer(recorded_settings.kafka, active._sink, "test/1")  # type: ignore[arg-type]
    sink = sdk.MemorySink()
    trajectory = sdk.Trajectory(
        Recorder(recorded_settings, sink), str(uuid.uuid4()), TrajectoryInfo(agent="a", consent="train")
    )
    for number in range(200):
        trajectory.feedback("n", number)
    events = [Event(topic, key, record) for topic, key, record in sink.events]
    await asyncio.gather(*(confirmed.deliver(events[at : at + 50], 20) for at in range(0, 200, 50)))
    await confirmed.deliver([], 1)
    found = read_topic(recorded_settings, "feedback", trajectory.id, 200)
    assert {event["event_id"] for event in found} == {event.record["event_id"] for event in events}
    with pytest.raises(NotDelivered) as caught:
        await confirmed.deliver([Event("feedback", "t", events[0].record | {"value": "no"})], 5)
    assert not caught.value.retry
    confirmed.close()


async def test_deliver_without_kafka_raises_at_its_timeout(recorded_settings: Settings) -> None:
    active = sdk.recorder()
    assert active is not None
    unreachable = with_settings(recorded_settings, kafka={"bootstrap": "127.0.0.1:1"})
    confirmed = ConfirmedProducer(unreachable.kafka, active._sink, "test/1")  # type: ignore[arg-type]
    sink = sdk.MemorySink()
    sdk.Trajectory(Recorder(unreachable, sink), "t", TrajectoryInfo(agent="a", consent="train")).feedback("n", 1)
    topic, key, record = sink.events[0]
    await asyncio.to_thread(active._sink.codec.header, topic)  # type: ignore[attr-defined]  # the registry may be slow
    with pytest.raises(NotDelivered, match=r"0\.3 s") as caught:
        await confirmed.deliver([Event(topic, key, record)], 0.3)
    assert caught.value.retry
    confirmed.close()


async def test_a_subscription_yields_new_checkpoints(registry_settings: Settings) -> None:
    model = f"m-{uuid.uuid4()}"
    producer = EventProducer(registry_settings.kafka, codec(registry_settings.schema_registry.url), "test/1")

    def publish(version: int) -> None:
        event = checkpoint(version, model=model)
        producer.send("checkpoints", f"{model}@{version}", event)
        producer.flush(TIMEOUT_S)

    publish(1)
    publish(2)
    with sdk.subscribe_checkpoints(model, settings=registry_settings) as versions:
        assert next(versions)["version"] == 2
        publish(3)
        assert next(versions)["version"] == 3
    with closing(sdk.subscribe_checkpoints(model, history=True, settings=registry_settings)) as versions:
        assert [(await anext(versions))["version"] for _ in range(3)] == [1, 2, 3]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(versions), 0.05)
        publish(4)
        assert (await anext(versions))["version"] == 4
        threading.Timer(0.1, versions.close).start()
        assert [version async for version in versions] == []
