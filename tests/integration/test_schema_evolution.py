"""Test that this version reads and labels records of the first release, and that its readers read current ones."""

import io
import json
import random
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import fastavro.utils
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import ConfigCompatibilityLevel, Schema, SchemaRegistryClient, ServerConfig
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext
from gateway_fixtures import read_topic
from service_process import registry
from waiting import TIMEOUT_S

from stepstream.config import Settings
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.schemas import schema
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.client import admin_client
from stepstream.topics.codec import HEADER, Codec

V1 = Path(__file__).parents[1] / "data" / "schemas" / "v1"
TOPICS_OF_V1 = {
    "steps": "Step",
    "feedback": "Feedback",
    "governed-steps": "Step",
    "governed-feedback": "Feedback",
    "closures": "TrajectoryClosed",
    "labeled-trajectories": "LabeledTrajectory",
    "trajectory-stats": "TrajectoryStats",
    "checkpoints": "Checkpoint",
    "worker-status": "WorkerStatus",
    "dead-letters": "DeadLetter",
}
STARTED_US = 1_760_000_000_000_000
BEFORE = f"before-{uuid.uuid4()}"
AFTER = f"after-{uuid.uuid4()}"


def old(topic: str) -> Any:
    """Return the first release's schema of a topic."""
    return json.loads((V1 / f"{TOPICS_OF_V1[topic]}.avsc").read_text())


class OldProducer:
    """An agent of the first release: its schema, its registration, a stock Avro library."""

    def __init__(self, settings: Settings, registry_url: str) -> None:
        self._producer = Producer({"bootstrap.servers": settings.kafka.bootstrap})
        self._schemas = {topic: fastavro.parse_schema(old(topic)) for topic in ("steps", "feedback")}
        with SchemaRegistryClient({"url": registry_url}) as client:
            self._ids = {
                topic: client.lookup_schema(f"{topic}-value", Schema(json.dumps(old(topic)), "AVRO")).schema_id
                for topic in self._schemas
            }

    def send(self, topic: str, record: dict[str, Any]) -> None:
        value = encode(self._schemas[topic], self._ids[topic], record)
        self._producer.produce(topic, key=record["trajectory_id"].encode(), value=value)

    def work(self, trajectory_id: str) -> None:
        """Send a complete trajectory: a tool call, and an answer from its result."""
        question = {"role": "user", "content": f"look up {trajectory_id}"}
        calls = [{"call_id": "call_1", "name": "get", "arguments": '{"input": "a"}'}]
        result = {"role": "tool", "content": "4", "tool_call_id": "call_1"}
        self.send("steps", step(trajectory_id, 0, [question], {"role": "assistant", "tool_calls": calls}))
        self.send("steps", step(trajectory_id, 1, [result], {"role": "assistant", "content": "It is 4."}))
        outcome = {"name": "outcome", "value": 1.0, "source": "environment"}
        ends = {"end": "terminated", "last_step_index": 1}
        envelope = {
            "event_id": str(uuid.uuid4()),
            "occurred_at_us": STARTED_US,
            "producer": "old/0.1.0",
            "consent": "train",
        }
        self.send("feedback", envelope | {"trajectory_id": trajectory_id} | outcome | ends)
        assert self._producer.flush(TIMEOUT_S) == 0


def step(trajectory_id: str, index: int, messages: list[Any], response: dict[str, Any]) -> dict[str, Any]:
    return {
        "event_id": str(uuid.uuid4()),
        "occurred_at_us": STARTED_US + index,
        "producer": "old/0.1.0",
        "consent": "train",
        "trajectory_id": trajectory_id,
        "step_index": index,
        "agent": "old-agent",
        "model": "demo",
        "fidelity": "text",
        "prompt_shared_messages": 2 * index,
        "messages": messages,
        "response": response,
        "sampling": {},
        "finish_reason": "stop",
    }


def encode(writer: Any, schema_id: int, record: dict[str, Any]) -> bytes:
    out = io.BytesIO(struct.pack(">bI", 0, schema_id))
    out.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(out, writer, record, strict_allow_default=True)
    return out.getvalue()


@pytest.fixture(scope="module")
def settings(base_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings of a cluster with the first release's topics, schemas and records, upgraded to this version."""
    folder = tmp_path_factory.mktemp("evolution")
    wired = isolated(base_settings, folder / "stack")
    with Stack(wired, ["broker"]) as first, registry(first.settings, folder / "registry.log") as service:
        url = service.settings.schema_registry.url
        names = [NewTopic(name, TOPICS[name].partition_count(base_settings.topics), 1) for name in TOPICS_OF_V1]
        admin = admin_client(first.settings.kafka)
        for created in admin.create_topics(names).values():
            created.result()
        with SchemaRegistryClient({"url": url}) as client:
            for topic in TOPICS_OF_V1:
                client.set_config(
                    f"{topic}-value", ServerConfig(compatibility=ConfigCompatibilityLevel.FULL_TRANSITIVE)
                )
                client.register_schema(f"{topic}-value", Schema(json.dumps(old(topic)), "AVRO"))
        OldProducer(first.settings, url).work(BEFORE)
    with Stack(wired, ["broker", "registry", "govern", "label"]) as stack:
        yield stack.settings


@pytest.fixture
def client(settings: Settings) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": settings.schema_registry.url}) as made:
        yield made


@pytest.fixture
def codec(settings: Settings) -> Iterator[Codec]:
    made = Codec(settings)
    yield made
    made.close()


@pytest.mark.parametrize("topic", TOPICS_OF_V1)
def test_the_current_schema_follows_the_first_one(client: SchemaRegistryClient, topic: str) -> None:
    changed = old(topic) != schema(TOPICS[topic].schema)
    assert client.get_versions(f"{topic}-value") == ([1, 2] if changed else [1])
    assert client.get_config(f"{topic}-value").compatibility_level == ConfigCompatibilityLevel.FULL_TRANSITIVE


def incompatible(schema_: Any) -> dict[str, Any]:
    fields = schema_["fields"]
    added = {"name": "of_tomorrow", "type": "string"}
    retyped = [field | {"type": "long"} if field["name"] == "agent" else field for field in fields]
    return {
        "a new field without a default": schema_ | {"fields": [*fields, added]},
        "a field gone that old readers need": schema_ | {"fields": [f for f in fields if f["name"] != "agent"]},
        "a field of another type": schema_ | {"fields": retyped},
    }


@pytest.mark.parametrize("change", incompatible({"fields": []}))
def test_an_incompatible_change_is_rejected(client: SchemaRegistryClient, change: str) -> None:
    wrong = Schema(json.dumps(incompatible(schema("Step"))[change]), "AVRO")
    assert not client.test_compatibility("steps-value", wrong)
    with pytest.raises(SchemaRegistryError) as refusal:
        client.register_schema("steps-value", wrong)
    assert refusal.value.http_status_code == 409


def random_record(schema_: Any) -> Any:
    """Return a record with a random value in every field, as Avro decodes it."""
    random.seed(schema_["name"])
    parsed = fastavro.parse_schema(schema_)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, fastavro.utils.generate_one(parsed))
    out.seek(0)
    return fastavro.schemaless_reader(out, parsed, None)


def narrowed(value: Any, schema_: Any, types: dict[str, Any]) -> Any:
    """Return the part of a value that an older schema describes."""
    kind = types.get(schema_, schema_) if isinstance(schema_, str) else schema_
    if isinstance(kind, list):
        return None if value is None else narrowed(value, kind[1], types)
    if not isinstance(kind, dict):
        return value
    if "name" in kind:
        types[f"{kind.get('namespace', 'stepstream')}.{kind['name']}"] = kind
    if kind["type"] == "record":
        return {field["name"]: narrowed(value[field["name"]], field["type"], types) for field in kind["fields"]}
    if kind["type"] == "array":
        return [narrowed(item, kind["items"], types) for item in value]
    return value


@pytest.mark.parametrize("topic", TOPICS_OF_V1)
def test_the_current_reader_reads_an_old_record(client: SchemaRegistryClient, codec: Codec, topic: str) -> None:
    schema_id = client.lookup_schema(f"{topic}-value", Schema(json.dumps(old(topic)), "AVRO")).schema_id
    assert schema_id is not None
    record = random_record(old(topic))
    read = codec.decode(topic, encode(fastavro.parse_schema(old(topic)), schema_id, record))
    assert narrowed(read, old(topic), {}) == record
    known = {field["name"] for field in old(topic)["fields"]}
    new = {
        field["name"]: field["default"]
        for field in schema(TOPICS[topic].schema)["fields"]
        if field["name"] not in known
    }
    assert {name: read[name] for name in new} == new


@pytest.mark.parametrize("topic", TOPICS_OF_V1)
def test_an_old_reader_reads_a_current_record(client: SchemaRegistryClient, codec: Codec, topic: str) -> None:
    record = random_record(schema(TOPICS[topic].schema))
    value = codec.encode(topic, record)
    reader = AvroDeserializer(client, schema_str=json.dumps(old(topic)))
    assert reader(value, SerializationContext(topic, MessageField.VALUE)) == narrowed(record, old(topic), {})
    assert HEADER.unpack_from(value)[1] == client.get_latest_version(f"{topic}-value").schema_id


@pytest.mark.parametrize("trajectory_id", [BEFORE, AFTER], ids=["written before the upgrade", "written after it"])
def test_an_old_producers_trajectory_is_labelled(settings: Settings, trajectory_id: str) -> None:
    if trajectory_id == AFTER:
        OldProducer(settings, settings.schema_registry.url).work(trajectory_id)
    (label,) = read_topic(settings, "labeled-trajectories", trajectory_id, 1)
    assert (label["complete"], label["success"], label["agent"]) == (True, True, "old-agent")
    assert [call["result"] for call in label["steps"][0]["tool_calls"]] == ["4"]
    assert label["steps"][1]["prompt_shared_step"] == 0
