"""List, show and redrive dead letters on a real broker, with the command line."""

import hashlib
import json
import uuid
from contextlib import closing
from typing import Any

import pytest
from command_line import CommandResult, stepstream
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from waiting import TIMEOUT_S

from stepstream.config import Settings
from stepstream.topics.client import client_config
from stepstream.topics.codec import Codec
from stepstream.topics.events import new_dead_letter
from stepstream.topics.ids import now_us
from stepstream.topics.producer import EventProducer

VALUE = b"\0\xff\xff\xff\x01 a record of a schema that was missing"


class Log:
    """Writes raw records and their dead letters, and reads raw records."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tenant = uuid.uuid4().hex
        self._producer = Producer(client_config(settings.kafka))

    def put(self, topic: str = "steps") -> tuple[int, int]:
        """Write a record; return its partition and offset."""
        placed: list[Message] = []
        self._producer.produce(
            topic, VALUE, b"a key", headers=[("ce_id", b"e1")], on_delivery=lambda _, message: placed.append(message)
        )
        assert self._producer.flush(TIMEOUT_S) == 0
        return placed[0].partition() or 0, placed[0].offset() or 0

    def reject(self, partition: int, offset: int, topic: str = "steps", value: bytes = VALUE) -> str:
        """Write the dead letter of a record; return its id."""
        letter_id = uuid.uuid4().hex
        letter = new_dead_letter(
            event_id=letter_id,
            occurred_at_us=now_us(),
            job="govern@1",
            topic=topic,
            partition=partition,
            offset=offset,
            key=b"a key",
            value_bytes=len(value),
            value_sha256=hashlib.sha256(value).hexdigest(),
            error="unknown_schema",
            reason="no schema 16777217 in the registry",
            tenant=self.tenant,
        )
        with closing(Codec(self.settings)) as codec:
            producer = EventProducer(self.settings.kafka, codec, "test")
            producer.send("dead-letters", "a key", letter)
            producer.flush(TIMEOUT_S)
        return letter_id

    def after(self, partition: int, offset: int) -> list[Message]:
        """Return the records of `steps` after an offset."""
        consumer = Consumer(client_config(self.settings.kafka) | {"group.id": "unused", "enable.auto.commit": False})
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition("steps", partition), timeout=TIMEOUT_S)
            consumer.assign([TopicPartition("steps", partition, offset + 1)])
            return consumer.consume(end - offset - 1, TIMEOUT_S) if end > offset + 1 else []
        finally:
            consumer.close()

    def run(self, *words: str) -> CommandResult:
        return stepstream(self.settings, "dead-letters", *words)

    def json(self, *words: str, status: int = 0) -> Any:
        done = self.run(*words, "--json")
        assert done.status == status, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def log(registry_settings: Settings) -> Log:
    return Log(registry_settings)


def test_a_record_is_sent_again_once(log: Log) -> None:
    partition, offset = log.put()
    letter = log.reject(partition, offset)
    [row] = log.json("list", "--tenant", log.tenant, "--error", "unknown_schema")
    assert (row["id"], row["offset"], row["redriven"]) == (letter, offset, False)
    assert log.json("show", letter)["reason"] == "no schema 16777217 in the registry"
    assert log.json("redrive", "--tenant", log.tenant, "--dry-run")["sent"] == {"steps": 1}
    assert log.after(partition, offset) == []
    assert log.json("redrive", letter) == {"sent": {"steps": 1}, "not_sent": {}, "dry_run": False}
    [copy] = log.after(partition, offset)
    assert (copy.value(), copy.key()) == (VALUE, b"a key")
    assert dict(copy.headers() or []) == {"ce_id": b"e1", "stepstream-redrives": letter.encode()}
    assert log.json("redrive", "--tenant", log.tenant)["sent"] == {}
    assert len(log.after(partition, offset)) == 1
    assert log.json("list", "--tenant", log.tenant) == []
    [row] = log.json("list", "--tenant", log.tenant, "--all")
    assert row["redriven"]


def test_records_that_cannot_be_sent_again_are_named(log: Log) -> None:
    partition, offset = log.put()
    faults = {
        log.reject(partition, offset + 1_000_000): "is gone",
        log.reject(-1, -1): "Kafka refused",
        log.reject(0, 0, topic="policies"): "write the key again",
        log.reject(partition, offset, value=b"other"): "is another record",
    }
    good = log.reject(partition, offset)
    done = log.json("redrive", "--tenant", log.tenant, status=1)
    assert done["sent"] == {"steps": 1}
    assert done["not_sent"].keys() == faults.keys()
    assert all(faults[name] in reason for name, reason in done["not_sent"].items())
    assert {row["id"] for row in log.json("list", "--tenant", log.tenant)} == faults.keys()
    assert log.json("show", good)["redriven"]


def test_an_unknown_letter_and_no_selection_are_errors(log: Log) -> None:
    assert log.run("show", "nothing").status == 1
    assert log.run("redrive", "nothing").status == 1
    assert log.run("redrive").status == 2
