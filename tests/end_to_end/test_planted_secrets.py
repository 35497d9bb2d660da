"""Run the whole loop with planted personal data and secrets: after `govern`, none is found in any encoding."""

import base64
import json
import random
import string
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from scripted_upstream import ScriptedUpstream
from stack_fixtures import with_settings
from waiting import TIMEOUT_S, wait_until

from stepstream.config import ProviderSettings, Settings
from stepstream.embedded.stack import Stack
from stepstream.jobs.clickhouse.connection import connect
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.client import client_config
from stepstream.topics.codec import Codec
from stepstream.topics.events import new_message, new_sampling, new_step, new_tool_call
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer

RAW = {"steps", "feedback", "open-traces"}
"""Topics before `govern`, whose events are not redacted."""
LABELS, LETTERS = "labeled-trajectories", "dead-letters"


def planted(seed: int = 7) -> dict[str, str]:
    """Return one valid value of each kind that occurs nowhere else."""
    rng = random.Random(seed)

    def some(alphabet: str, count: int) -> str:
        return "".join(rng.choice(alphabet) for _ in range(count))

    mixed = string.ascii_letters + string.digits
    return {
        "email": f"{some(string.ascii_lowercase, 9)}@{some(string.ascii_lowercase, 8)}.org",
        "card": with_luhn("4" + some(string.digits, 14)),
        "iban": with_mod97("DE", some(string.digits, 18)),
        "aws": "AKIA" + some(string.ascii_uppercase + "234567", 16),
        "github": "ghp_" + some(mixed, 36),
        "openai": "sk-proj-" + some(mixed, 44),
        "password": some(mixed, 18) + "9!",
        "url": f"postgresql://app:{some(mixed, 14)}@db.{some(string.ascii_lowercase, 7)}.internal:5432/orders",
        "jwt": f"eyJhbGciOiJIUzI1NiJ9.eyJ{some(mixed, 40)}.{some(mixed, 43)}",
    }


def with_luhn(digits: str) -> str:
    """Append the check digit of a card number."""
    doubled = sum(sum(divmod(2 * int(d), 10)) for d in digits[::-2]) + sum(int(d) for d in digits[-2::-2])
    return digits + str(-doubled % 10)


def with_mod97(country: str, digits: str) -> str:
    """Return an IBAN (ISO 13616) with its check digits."""
    number = int(digits + "".join(str(ord(letter) - 55) for letter in country) + "00")
    return f"{country}{98 - number % 97:02d}{digits}"


def plain_text(values: dict[str, str]) -> str:
    """Return all values in one text, as people and programs write them."""
    return (
        f"Write to {values['email']}, card {values['card']}, account {values['iban']}. "
        f"export AWS_ACCESS_KEY_ID={values['aws']}; token {values['github']} or {values['openai']}; "
        f"password={values['password']} and {values['url']} with Authorization: Bearer {values['jwt']}"
    )


def encoded_text(values: dict[str, str]) -> str:
    """Return some values as JSON inside JSON, in base64 and URL-encoded."""
    inner = json.dumps({"note": json.dumps({"contact": values["email"], "password": values["password"]})})
    coded = base64.b64encode(f"token={values['github']} for {values['email']}".encode()).decode()
    return json.dumps(
        {"payload": inner, "blob": coded, "query": f"mail={urllib.parse.quote(values['email'], safe='')}"}
    )


def forms(value: str) -> set[bytes]:
    """Return the encodings of a value: plain, URL-encoded, hexadecimal, JSON, and base64 at any offset."""
    raw = value.encode()
    found = {raw, urllib.parse.quote(value, safe="").encode(), raw.hex().encode(), json.dumps(value)[1:-1].encode()}
    for offset in range(3):
        coded = base64.b64encode(b"\0" * offset + raw)
        found.add(coded[4 if offset else 0 : len(coded) - 4])  # without what depends on its neighbours
    return found


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as worker:
        yield worker


@pytest.fixture
def stack(loop_settings: Settings, upstream: ScriptedUpstream) -> Iterator[Stack]:
    provider = ProviderSettings(name="scripted", base_url=upstream.url, models=["scripted-*"], gives_tokens=True)
    small = {"groups_per_update": 2, "updates_per_checkpoint": 1}
    settings = with_settings(loop_settings, gateway={"providers": [provider]}, learner=small, fleet={"concurrency": 16})
    with Stack(settings, deferred=["console", "fleet"]) as running:
        yield running


def test_no_planted_value_is_found_after_govern(stack: Stack, upstream: ScriptedUpstream) -> None:
    values = planted()
    settings = stack.settings
    stack.start_process("fleet")  # provides training data, and so checkpoints with provenance
    trajectories = plant(settings, upstream, values)
    rejected = dead_letter(settings, plain_text(values), encoded_text(values))
    wait_until(lambda: checkpoints(settings) >= 2, "a version that was trained")
    stack.stop_process("fleet")
    wait_until(lambda: contains_all(settings, LABELS, trajectories), "labels")
    wait_until(lambda: has_rows(settings, trajectories), "rows of what was planted")
    wait_until(lambda: contains_all(settings, LETTERS, rejected), "dead letters")

    needles = {form: kind for kind, value in values.items() for form in forms(value)}
    haystack = {**records(settings), **rows(settings), **files(settings)}
    assert kinds_in(haystack["topic steps"], needles) == set(values), "the scan misses planted values"
    found = {place: kinds for place, text in haystack.items() if (kinds := kinds_in(text, needles))}
    assert set(found) <= {f"topic {name}" for name in RAW}, found


def kinds_in(text: bytes, needles: dict[bytes, str]) -> set[str]:
    """Return the kinds of planted values in a text."""
    return {kind for form, kind in needles.items() if form in text}


def plant(settings: Settings, upstream: ScriptedUpstream, values: dict[str, str]) -> list[str]:
    """Send the values through every input; return the trajectories."""
    upstream.reply = lambda request: f"Noted: {plain_text(values)}"
    text, hidden = plain_text(values), encoded_text(values)
    chat, responses, anthropic = (uuid.uuid4().hex for _ in range(3))
    headers = {
        f"x-stepstream-{name}": f"{name} {values['github']}" for name in ("task", "group", "agent", "environment")
    }
    messages = [{"role": "system", "content": hidden}, {"role": "user", "content": text}]
    post(settings, "/v1/chat/completions", {"model": "scripted-1", "messages": messages}, chat, headers)
    post(settings, "/v1/responses", {"model": "scripted-1", "instructions": text, "input": hidden}, responses)
    body = {"model": "scripted-1", "max_tokens": 99, "system": text, "messages": [{"role": "user", "content": hidden}]}
    post(settings, "/v1/messages", body, anthropic)
    plain = publish(settings, text, hidden, values)
    trajectories = [chat, responses, anthropic, plain, trace(settings, text, hidden)]
    for trajectory in trajectories:
        ending = {"trajectory_id": trajectory, "name": "outcome", "value": 1, "source": "environment"}
        ending |= {"ends_trajectory": "terminated", "last_step_index": 0, "comment": text, "demonstration": hidden}
        post(settings, "/v1/feedback", ending | {"name": values["openai"], "tool_call_id": values["aws"]}, trajectory)
        post(settings, "/v1/feedback", ending, trajectory)
    return trajectories


def post(settings: Settings, path: str, body: Any, trajectory: str, more: dict[str, str] | None = None) -> None:
    """Send one request to the gateway."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{settings.gateway.port}{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json", "x-stepstream-trajectory": trajectory, **(more or {})},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        assert answer.status in (200, 202)


def trace(settings: Settings, text: str, hidden: str) -> str:
    """Export a model call with its content by OpenTelemetry; return its trajectory, which is its conversation."""
    trajectory, now = uuid.uuid4().hex, time.time_ns()

    def messages_json(role: str, content: str) -> str:
        return json.dumps([{"role": role, "parts": [{"type": "text", "content": content}]}])

    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "other",
        "gen_ai.conversation.id": trajectory,
        "gen_ai.input.messages": messages_json("user", hidden),
        "gen_ai.output.messages": messages_json("assistant", text),
    }
    span = {
        "traceId": uuid.uuid4().hex,
        "spanId": uuid.uuid4().hex[:16],
        "name": "chat other",
        "startTimeUnixNano": str(now - 1000),
        "endTimeUnixNano": str(now),
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()],
    }
    post(settings, "/v1/traces", {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}, trajectory)
    return trajectory


def publish(settings: Settings, text: str, hidden: str, values: dict[str, str]) -> str:
    """Send a step with values in its ids, texts and tool calls by a plain Kafka client; return its trajectory."""
    trajectory = uuid.uuid4().hex
    call = new_tool_call(call_id=values["github"], name="lookup", arguments=hidden, result=text, error="Denied")
    step = new_step(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        producer=f"test/{values['openai']}",
        consent="train",
        trajectory_id=trajectory,
        step_index=0,
        task_id=f"task of {values['email']}",
        group_id=f"group-{values['card']}",
        agent=f"planted {values['iban']}",
        environment=values["jwt"],
        harness_version=values["github"],
        split=values["aws"],
        model=f"other {values['openai']}",
        finish_reason=text,
        fidelity="text",
        messages=[new_message(role="user", content=hidden, name="x", reasoning=text)],
        response=new_message(role="assistant", content=text, tool_calls=[call], reasoning=hidden),
        sampling=new_sampling(),
        error=f"PermissionError: {text}",
    )
    with closing(Codec(settings)) as codec:
        producer = EventProducer(settings.kafka, codec, "test/1")
        producer.send("steps", trajectory, step)
        producer.flush(TIMEOUT_S)
    return trajectory


def contains_all(settings: Settings, topic: str, trajectories: list[str]) -> bool:
    """Return True if a topic contains all trajectories."""
    text = records(settings, [topic])[f"topic {topic}"]
    return all(trajectory.encode() in text for trajectory in trajectories)


def dead_letter(settings: Settings, text: str, hidden: str) -> list[str]:
    """Send two records that `govern` rejects, an invalid and a malformed one; return their trajectories."""
    invalid, malformed = uuid.uuid4().hex, uuid.uuid4().hex
    step = new_step(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        producer="test/1",
        consent="train",
        trajectory_id=invalid,
        step_index=0,
        agent="planted",
        model="other",
        fidelity="text",
        messages=[new_message(role="user", content=text, reasoning=hidden)],
        response=new_message(role="assistant", content=text),
        loss_mask=[True],
        sampling=new_sampling(),
    )
    with closing(Codec(settings)) as codec:
        producer = EventProducer(settings.kafka, codec, "test/1")
        producer.send("steps", invalid, step)
        identity = {"event_id": new_event_id(), "occurred_at_us": now_us()}
        producer.send_encoded("feedback", malformed, f"{text} {hidden}".encode(), identity)
        producer.flush(TIMEOUT_S)
    return [invalid, malformed]


def checkpoints(settings: Settings) -> int:
    """Return the number of versions published so far."""
    return records(settings, ["checkpoints"])["topic checkpoints"].count(b"model.safetensors")


def has_rows(settings: Settings, trajectories: list[str]) -> bool:
    """Return True if ClickHouse has rows of all trajectories."""
    with closing(connect(settings, database=settings.clickhouse.database)) as client:
        query = "SELECT uniqExact(trajectory_id) FROM {} WHERE trajectory_id IN {{ids:Array(String)}}"
        tables = ("steps", "feedback", "trajectories")
        return all(
            client.query(query.format(table), parameters={"ids": trajectories}).result_rows == [(len(trajectories),)]
            for table in tables
        )


def records(settings: Settings, topics: list[str] | None = None) -> dict[str, bytes]:
    """Return every record of the topics, by default of all, as bytes: keys, headers, values."""
    # An empty reply reports a partition's end; with the default setting the broker delays it by half a second.
    reading = {"group.id": "scan", "enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 20}
    consumer = Consumer(client_config(settings.kafka) | reading)
    found = {}
    try:
        for topic in topics or TOPICS:
            parts = []
            left = set(consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
            while left:
                for message in consumer.consume(1000, 0.05):
                    if (error := message.error()) is not None:
                        assert error.code() == KafkaError._PARTITION_EOF, error
                        left.discard(message.partition())
                        continue
                    parts += [message.key() or b"", message.value() or b""]
                    headers = message.headers() or []
                    for pair in headers.items() if isinstance(headers, dict) else headers:  # one name may come twice
                        parts += [text if isinstance(text, bytes) else str(text).encode() for text in pair]
            found[f"topic {topic}"] = b"\n".join(parts)
    finally:
        consumer.close()
    return found


def rows(settings: Settings) -> dict[str, bytes]:
    """Return every row of every table as JSON."""
    database = settings.clickhouse.database
    with closing(connect(settings, database=database)) as client:
        query = "SELECT name FROM system.tables WHERE database = {db:String} AND engine NOT LIKE '%View'"
        names = [name for (name,) in client.query(query, parameters={"db": database}).result_rows]
        assert {"steps", "feedback", "trajectories", "step_contents", "checkpoints"} <= set(names)
        return {f"table {name}": client.raw_query(f"SELECT * FROM {name}", fmt="JSONEachRow") for name in names}


def files(settings: Settings) -> dict[str, bytes]:
    """Return every log, and every file of a checkpoint except its weights."""
    data = settings.paths.data
    folders = [data / "logs", data / "checkpoints"]
    found = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert any(file.suffix == ".log" for file in found)
    assert any(file.suffix == ".json" for file in found)
    return {f"file {relative(file, data)}": file.read_bytes() for file in found if file.suffix != ".safetensors"}


def relative(file: Path, folder: Path) -> str:
    return str(file.relative_to(folder))
