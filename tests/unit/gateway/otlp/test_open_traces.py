"""Test that each open trace is published on its own, and a faulty one becomes a dead letter."""

from dataclasses import dataclass
from typing import Any, cast

import pytest
from hand_made_traces import DEFAULTS

from stepstream.config import load
from stepstream.delivery.confirmed_producer import NotDelivered
from stepstream.services.gateway.otlp.assembly import AssembledRecord
from stepstream.services.gateway.otlp.identity import Defaults
from stepstream.services.gateway.otlp.open_traces import OpenTraces
from stepstream.services.gateway.otlp.trace import Trace
from stepstream.services.gateway.otlp.wire import TraceRequest
from stepstream.topics.codec import Codec, CodecError
from stepstream.topics.events import new_trace_export

TORN = "cc" * 16
UNREADABLE = "ee" * 16
"""Trace whose part is a record with an invalid payload."""


@dataclass
class Part:
    """A message of the topic; its value is the trace's id."""

    trace_id: str
    position: int

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.position

    def key(self) -> bytes:
        return self.trace_id.encode()

    def value(self) -> bytes:
        return self.trace_id.encode()


class FakeCodec:
    """A codec of such messages."""

    def decode(self, topic: str, value: bytes) -> Any:
        trace_id = value.decode()
        if trace_id == TORN:
            raise CodecError("half of a record")
        request = TraceRequest()
        request.resource_spans.add().scope_spans.add().spans.add(trace_id=bytes.fromhex(trace_id), span_id=b"12345678")
        return new_trace_export(
            event_id="",
            occurred_at_us=0,
            producer="",
            trace_id=trace_id,
            tenant=DEFAULTS.tenant,
            consent=DEFAULTS.consent,
            signal="traces",
            payload=b"\xff" if trace_id == UNREADABLE else request.SerializeToString(),
        )


def test_a_faulty_trace_is_a_dead_letter_and_delays_no_other() -> None:
    faulty, sound, vast = "aa" * 16, "bb" * 16, "dd" * 16
    published: list[AssembledRecord] = []

    def assemble(trace: Trace, defaults: Defaults) -> list[AssembledRecord]:
        if trace.trace_id == faulty:
            raise TypeError("unexpected content")
        return [AssembledRecord("steps", trace.trace_id, {})]

    def publish(records: list[AssembledRecord]) -> list[str]:
        published.extend(records)
        return ["it is too large"] if records[0].topic == "steps" and records[0].key == vast else []

    traces = OpenTraces(load({}), cast(Codec, FakeCodec()), assemble, "agent")
    traces._publish = publish
    for position, trace_id in enumerate((faulty, sound, TORN, vast, UNREADABLE)):
        traces._read(cast(Any, Part(trace_id, position)))
    traces._publish_settled(float("inf"))
    assert [record.key for record in published if record.topic == "steps"] == [sound, vast]
    letters = {record.key: record.record for record in published if record.topic == "dead-letters"}
    assert {key: (each["offset"], each["error"], each["tenant"]) for key, each in letters.items()} == {
        faulty: (0, "invalid", DEFAULTS.tenant),
        TORN: (2, "malformed", None),
        vast: (3, "invalid", DEFAULTS.tenant),
        UNREADABLE: (4, "malformed", DEFAULTS.tenant),
    }
    for letter in letters.values():
        assert letter["reason"]
        assert "unexpected content" not in letter["reason"]


def test_a_part_is_read_again_unless_kafka_acknowledged_its_dead_letter() -> None:
    def publish(records: list[AssembledRecord]) -> list[str]:
        raise NotDelivered("Kafka is unreachable")

    traces = OpenTraces(load({}), cast(Codec, FakeCodec()), lambda trace, defaults: [], "agent")
    traces._publish = publish
    with pytest.raises(NotDelivered):
        traces._read(cast(Any, Part(TORN, 0)))
    assert not traces._positions
