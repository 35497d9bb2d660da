"""Test that two tenants that send spans of one trace, under the same names, stay apart."""

import json
from typing import Any, cast

import pytest
from hand_made_traces import CHAT, TRACE, answer, span
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from stepstream.config import load
from stepstream.core.slices import at_once
from stepstream.services.gateway.otlp.assembly import AssembledRecord, Assembler
from stepstream.services.gateway.otlp.calls import EVALUATION
from stepstream.services.gateway.otlp.fast_steps import PlainStepWriter
from stepstream.services.gateway.otlp.identity import Defaults
from stepstream.services.gateway.otlp.intake import Intake
from stepstream.services.gateway.otlp.open_traces import OpenTraces
from stepstream.services.gateway.otlp.span_index import SpanIndex
from stepstream.services.gateway.otlp.spans import Log, Resource
from stepstream.services.gateway.otlp.trace import Trace
from stepstream.services.gateway.otlp.wire import TraceRequest
from stepstream.topics.codec import Codec
from stepstream.topics.events import new_trace_export
from stepstream.topics.ids import derived_id

OURS, THEIRS, DEFAULT = (Defaults(tenant, "train", "agent") for tenant in ("ours", "theirs", "default"))


def call(person: str, content: str) -> Any:
    messages = [{"role": "user", "parts": [{"type": "text", "content": content}]}]
    return span(
        "c", "", 1, a=CHAT | {"gen_ai.input.messages": messages}, gen_ai__output__messages=answer(content),
        user__id=person, gen_ai__conversation__id="session-1", gen_ai__response__id="resp",
    )  # fmt: skip


def evaluation(**attributes: Any) -> Log:
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    return Log(TRACE, "c", EVALUATION, 5, named | {"gen_ai.evaluation.name": "q"}, {}, Resource({}))


def records_of(assembler: Assembler, defaults: Defaults, *parts: Any) -> list[Any]:
    trace = Trace(TRACE)
    for part in parts:
        if isinstance(part, Log):
            trace.add_log(part)
        else:
            trace.add(part)
    return [record.record for record in assembler.records(trace, defaults)]


def test_the_same_span_is_a_step_of_each_tenant() -> None:
    assembler = Assembler("test/1", SpanIndex(100))
    [ours] = records_of(assembler, OURS, call("ada", "our prompt"))
    [theirs] = records_of(assembler, THEIRS, call("bob", "their prompt"))
    [default] = records_of(assembler, DEFAULT, call("cy", "a prompt"))
    steps = (ours, theirs, default)
    assert [(step["tenant"], step["user"], step["step_index"]) for step in steps] == [
        ("ours", "ada", 0),
        ("theirs", "bob", 0),
        ("default", "cy", 0),
    ]
    assert {step["trajectory_id"] for step in steps} == {"session-1"}
    assert len({step["event_id"] for step in steps}) == 3
    assert default["event_id"] == derived_id("otlp@1", TRACE, "c", "step")  # as in earlier releases
    assert [step["messages"][0]["content"] for step in steps] == ["our prompt", "their prompt", "a prompt"]


@pytest.mark.parametrize("names", [{}, {"gen_ai__response__id": "resp"}])
def test_an_evaluation_never_carries_another_tenants_person(names: dict[str, Any]) -> None:
    assembler = Assembler("test/1", SpanIndex(100))
    records_of(assembler, THEIRS, call("bob", "their prompt"))
    [alone] = records_of(assembler, OURS, evaluation(**names))
    assert (alone["tenant"], alone["user"], alone["trajectory_id"]) == ("ours", None, TRACE)
    records_of(assembler, OURS, call("ada", "our prompt"))
    [ours] = records_of(assembler, OURS, evaluation(**names))
    [theirs] = records_of(assembler, THEIRS, evaluation(**names))
    assert [(one["tenant"], one["user"], one["trajectory_id"]) for one in (ours, theirs)] == [
        ("ours", "ada", "session-1"),
        ("theirs", "bob", "session-1"),
    ]
    assert ours["event_id"] != theirs["event_id"]


class Part:
    """A message of the topic of open traces, as its record."""

    def __init__(self, tenant: str, content: str, offset: int) -> None:
        request = TraceRequest()
        request.resource_spans.add().scope_spans.add().spans.add(
            trace_id=bytes.fromhex(TRACE), span_id=b"12345678", name=content
        )
        self.record = new_trace_export(
            event_id="", occurred_at_us=0, producer="", trace_id=TRACE, tenant=tenant, consent="train",
            signal="traces", payload=request.SerializeToString(),
        )  # fmt: skip
        self._offset = offset

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return TRACE.encode()

    def value(self) -> "Part":
        return self


class PartCodec:
    """Returns the records of such messages."""

    def decode(self, topic: str, value: Part) -> Any:
        return value.record


def test_the_parts_of_an_open_trace_are_collected_for_each_tenant() -> None:
    found: list[tuple[str, list[str]]] = []

    def assemble(trace: Trace, defaults: Defaults) -> list[AssembledRecord]:
        found.append((defaults.tenant, [span.name for span in trace.spans.values()]))
        return []

    traces = OpenTraces(load({}), cast(Codec, PartCodec()), assemble, "agent")
    traces._publish = lambda records: []
    for offset, (tenant, content) in enumerate([("ours", "a"), ("theirs", "b"), ("ours", "c")]):
        traces._read(cast(Any, Part(tenant, content, offset)))
    assert traces.is_open("ours", TRACE)
    assert not traces.is_open("default", TRACE)
    traces._publish_settled(float("inf"))
    assert sorted(found) == [("ours", ["c"]), ("theirs", ["b"])]  # the same span again replaces the first


def test_an_open_trace_of_one_tenant_delays_no_other() -> None:
    index = SpanIndex(100)
    intake = Intake(
        Assembler("test/1", index), PlainStepWriter("test/1", index), "test/1", lambda tenant, _: tenant == "ours"
    )
    request = TraceRequest()
    root = (
        request.resource_spans.add()
        .scope_spans.add()
        .spans.add(
            trace_id=bytes.fromhex(TRACE), span_id=b"12345678", start_time_unix_nano=10**18, end_time_unix_nano=10**18
        )
    )
    messages = json.dumps(answer("hello"))
    for name, value in (CHAT | {"gen_ai.input.messages": messages, "gen_ai.output.messages": messages}).items():
        entry = KeyValue(key=name, value=AnyValue(string_value=value))
        root.attributes.append(entry.SerializeToString())
    topics = [[r.topic for r in at_once(intake.traces(request, who, 1)).records] for who in (OURS, THEIRS)]
    assert topics == [["open-traces"], ["steps"]]
