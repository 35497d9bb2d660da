"""Test the Node example with a real broker and registry: Python reads its records, and it reads Python's."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings, environment_of
from stepstream.jobs.governance.validation import check_envelope, check_feedback, check_step
from stepstream.topics import admin
from stepstream.topics.client import client_config
from stepstream.topics.codec import Codec
from stepstream.topics.events import (
    Feedback,
    Step,
    new_feedback,
    new_message,
    new_policy_span,
    new_sampling,
    new_step,
    new_tool_call,
)
from stepstream.topics.ids import new_event_id, now_us, token_digest
from stepstream.topics.producer import EventProducer

pytest_plugins = ["node_project"]


@pytest.fixture(scope="module")
def settings(registry_settings: Settings) -> Settings:
    admin.apply(registry_settings)
    return registry_settings


@pytest.fixture(scope="module")
def codec(settings: Settings) -> Iterator[Codec]:
    codec = Codec(settings)
    yield codec
    codec.close()


@pytest.fixture(scope="module")
def published(node_project: Path, settings: Settings) -> list[dict[str, Any]]:
    """Run the example; return its events in order, each with topic, headers and record."""
    done = subprocess.run(
        ["node", "publish.js"],
        cwd=node_project,
        env={**os.environ, **environment_of(settings)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def read(settings: Settings, topic: str, key: str, count: int) -> list[Message]:
    """Return the first `count` records of a topic with a key."""
    found: list[Message] = []
    consumer = Consumer(
        {**client_config(settings.kafka), "group.id": f"test-{new_event_id()}", "auto.offset.reset": "earliest"}
    )
    try:
        partitions = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])

        def has_all() -> bool:
            found.extend(m for m in consumer.consume(500, 0.2) if not m.error() and m.key() == key.encode())
            return len(found) >= count

        wait_until(has_all)
    finally:
        consumer.close()
    return found


def test_python_reads_what_node_wrote(published: list[dict[str, Any]], settings: Settings, codec: Codec) -> None:
    assert [event["topic"] for event in published] == ["steps"] * 3 + ["feedback"]
    trajectory_id = published[0]["record"]["trajectory_id"]
    messages = read(settings, "steps", trajectory_id, 3) + read(settings, "feedback", trajectory_id, 1)
    assert len(messages) == 4
    for event, message in zip(published, messages, strict=True):
        sent = event["record"]
        complete = new_step(**with_messages(sent)) if event["topic"] == "steps" else new_feedback(**sent)
        record = codec.decode(event["topic"], message.value())
        assert record == codec.decode(event["topic"], codec.encode(event["topic"], complete))
        assert dict(message.headers() or []) == {name: value.encode() for name, value in event["headers"].items()}
        # The checks of `govern`.
        check_envelope(record, message.key(), now_us(), 60_000_000)
        (check_step if event["topic"] == "steps" else check_feedback)(record)


def with_messages(sent: dict[str, Any]) -> dict[str, Any]:
    """Return a step of the example with the defaults of its nested records."""

    def message(fields: dict[str, Any]) -> Any:
        return new_message(**fields | {"tool_calls": [new_tool_call(**call) for call in fields.get("tool_calls", [])]})

    nested = {"messages": [message(fields) for fields in sent["messages"]], "response": message(sent["response"])}
    return sent | nested | {"sampling": new_sampling(**sent["sampling"])}


def test_the_trajectory_is_complete(published: list[dict[str, Any]]) -> None:
    *steps, feedback = [event["record"] for event in published]
    assert [step["step_index"] for step in steps] == [0, 1, 2]
    # Each message is stored once: the prompts and responses in order are the conversation.
    messages = 0
    for step in steps:
        assert step["prompt_shared_messages"] == messages
        messages += len(step["messages"]) + 1
    assert [len(step["response"]["tool_calls"]) for step in steps] == [1, 1, 0]
    assert (feedback["end"], feedback["last_step_index"], feedback["value"]) == ("terminated", 2, 1)
    assert len({event["record"]["event_id"] for event in published}) == 4


def test_both_languages_choose_the_same_partition(
    published: list[dict[str, Any]], settings: Settings, codec: Codec
) -> None:
    key = published[0]["record"]["trajectory_id"]
    (outcome,) = read(settings, "feedback", key, 1)
    own = feedback(key)
    producer = EventProducer(settings.kafka, codec, "test")
    producer.send("feedback", key, own)
    producer.flush(TIMEOUT_S)
    assert {message.partition() for message in read(settings, "feedback", key, 2)} == {outcome.partition()}


def feedback(trajectory_id: str) -> Feedback:
    return new_feedback(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        producer="test",
        consent="train",
        trajectory_id=trajectory_id,
        name="outcome",
        value=0.1,
        comment="ünï\u0000 \U0001f600",
        source="environment",
    )


def step(trajectory_id: str) -> Step:
    """Return a step with a value in every kind of field."""
    call = new_tool_call(call_id="c", name="get", arguments='{"a":1}', result="7", duration_ms=0.1)
    return new_step(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        producer="test",
        consent="analyse",
        trajectory_id=trajectory_id,
        step_index=1,
        agent="a",
        model="m",
        fidelity="token",
        prompt_shared_tokens=2,
        prompt_shared_digest=token_digest([1, 2]),
        prompt_token_ids=[3, 2**31 - 1],
        messages=[new_message(role="tool", content="ü" * 5_000, tool_call_id="c")],
        response=new_message(role="assistant", tool_calls=[call]),
        response_token_ids=[5, 6],
        response_logprobs=[-0.1, -30.5],
        loss_mask=[True, False],
        policy_spans=[new_policy_span(start=0, end=2, model="m", version=3)],
        sampling=new_sampling(temperature=0.7, seed=2**62 + 1),
        end="truncated",
    )


def test_node_reads_what_python_wrote(node_project: Path, settings: Settings, codec: Codec) -> None:
    key = f"python-{new_event_id()}"
    sent: dict[str, Any] = {"steps": step(key), "feedback": feedback(key)}
    producer = EventProducer(settings.kafka, codec, "test")  # compresses with LZ4, as all processes do
    raw = Producer(client_config(settings.kafka))
    for value in (b'{"type": "step"}', b"\0\xff\xff\xff\xff", b"\0"):  # JSON, an unknown schema, a part of a record
        raw.produce("steps", value, key.encode())
    raw.flush(TIMEOUT_S)
    for topic, record in sent.items():
        producer.send(topic, key, record)
    producer.flush(TIMEOUT_S)
    found: dict[str, Any] = {}
    with (node_project / "skipped.log").open("wb") as log:
        reader = subprocess.Popen(
            ["node", "read.js", *sent],
            cwd=node_project,
            env={**os.environ, **environment_of(settings)},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert reader.stdout is not None

    def listen() -> None:
        for line in reader.stdout or ():
            if not line.endswith("\n"):
                return  # the reader was terminated while it printed a record of another test
            event = json.loads(line)
            if event["key"] == key:
                found[event["topic"]] = event["record"]

    def skipped() -> int:
        return (node_project / "skipped.log").read_text().count("skipped steps, partition")

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        # The two producers may choose different partitions, which the reader reads in any order.
        wait_until(lambda: (found.keys() == sent.keys() and skipped() >= 3) or reader.poll() is not None)
    finally:
        reader.terminate()
        status = reader.wait(TIMEOUT_S)
        listener.join()
        reader.stdout.close()
    assert status == 0
    assert skipped() >= 3
    found["steps"]["sampling"]["seed"] = int(found["steps"]["sampling"]["seed"])  # JavaScript prints it as a string
    # Both widen 32-bit floats alike.
    assert found == {topic: codec.decode(topic, codec.encode(topic, record)) for topic, record in sent.items()}
