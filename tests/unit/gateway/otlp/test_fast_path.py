"""Test that the fast path of plain traces and the general path give the same bytes."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp_fixtures import GENERATIONS, recorded_requests

from stepstream.config import load
from stepstream.core.slices import at_once
from stepstream.delivery.types import EncodedEvent
from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.otlp.assembly import Assembler
from stepstream.services.gateway.otlp.fast_steps import PlainStepWriter
from stepstream.services.gateway.otlp.identity import Defaults
from stepstream.services.gateway.otlp.intake import Intake, IntakeResult
from stepstream.services.gateway.otlp.span_index import SpanIndex
from stepstream.services.gateway.otlp.wire import TraceRequest, split_entries
from stepstream.topics.codec import Codec

DEFAULTS = Defaults("shop", "analyse", "agent")
CODEC = Codec(load({}))
TRACES = [bytes([number]) * 16 for number in (1, 2)]


class NoFastPath(PlainStepWriter):
    """Sends every trace to the general path."""

    def records(self, *_: Any) -> None:
        return None


class Path:
    """One of the two paths, with its own index."""

    def __init__(self, plain: type[PlainStepWriter]) -> None:
        span_index = SpanIndex(100)
        self._intake = Intake(Assembler("test/1", span_index), plain("test/1", span_index), "test/1", lambda *_: False)
        self.encoded = 0

    def take(self, body: bytes) -> list[Any]:
        """Return a request's records, without the ids of parts of open traces."""
        result: IntakeResult = at_once(self._intake.traces(TraceRequest.FromString(body), DEFAULTS, 1))
        self.encoded += sum(isinstance(record, EncodedEvent) for record in result.records)
        return [(result.rejected, result.reason), *(_comparable(record) for record in result.records)]


def _comparable(record: Any) -> Any:
    if isinstance(record, EncodedEvent):
        return record
    if record.topic == "open-traces":
        return record.record | {"event_id": ""}
    event = record.record
    body = CODEC.body(record.topic, event)
    return EncodedEvent(record.topic, record.key, event["event_id"], event["occurred_at_us"], body, record.headers)


def same(*bodies: bytes) -> int:
    """Check that both paths give the same records; return how many the fast path wrote."""
    short, long = Path(PlainStepWriter), Path(NoFastPath)
    for body in bodies:
        assert short.take(body) == long.take(body)
    assert long.encoded == 0
    return short.encoded


TEXTS = st.sampled_from(["", "Where is 4711?", "é\U0001f600\x00", "x" * 9000]) | st.text(max_size=8)
PARTS: st.SearchStrategy[Any] = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "content": TEXTS}),
    st.fixed_dictionaries(
        {"type": st.just("tool_call"), "id": TEXTS, "name": TEXTS, "arguments": st.just({"order": 4711}) | TEXTS}
    ),
    st.fixed_dictionaries({"type": st.just("tool_call_response"), "id": TEXTS, "response": TEXTS}),
    st.fixed_dictionaries({"type": st.just("reasoning"), "content": TEXTS}),
    st.sampled_from([{}, {"type": "text"}, {"type": "text", "content": None}, {"type": "image"}, "text", None]),
)
MESSAGES = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool"]), "parts": st.lists(PARTS, max_size=2)},
        optional={"finish_reason": st.sampled_from(["stop", "max_tokens", None, 7]), "name": TEXTS},
    ),
    st.sampled_from(["hello", None, 3, {"role": "user", "content": "old"}, {"role": 1, "parts": []}]),
)
SAID = st.lists(MESSAGES, max_size=3).map(json.dumps) | st.sampled_from(["", "{}", "[", "null", '"so"', "7", [], 7])
NUMBERS = st.sampled_from([0, 1, -1, 300, 2**40, -(2**63), 0.7, 1e300, "12", "many", True, ["1"]])
ATTRIBUTES = st.fixed_dictionaries(
    {
        "gen_ai.operation.name": st.sampled_from(["chat", "chat", "chat", "text_completion", "embeddings", 3]),
        "gen_ai.output.messages": SAID,
    },
    optional={
        "gen_ai.input.messages": SAID,
        "gen_ai.request.model": st.sampled_from(["demo", "", 5]),
        "gen_ai.response.model": st.sampled_from(["demo-1", "", ["m"]]),
        "gen_ai.response.id": TEXTS | st.just(5),
        "gen_ai.response.finish_reasons": st.sampled_from([["tool_use"], [], "stop", ["a", "b"]]),
        "gen_ai.response.time_to_first_chunk": NUMBERS,
        "gen_ai.usage.input_tokens": NUMBERS,
        "gen_ai.usage.output_tokens": NUMBERS,
        "gen_ai.request.temperature": NUMBERS,
        "gen_ai.request.max_tokens": NUMBERS,
        "gen_ai.request.seed": NUMBERS,
        "gen_ai.request.top_k": NUMBERS,
        "server.port": NUMBERS,
    },
)
RARE = st.dictionaries(
    st.sampled_from(
        [
            "gen_ai.agent.name",
            "gen_ai.conversation.id",
            "gen_ai.output.type",
            "gen_ai.request.min_p",
            "gen_ai.usage.prompt_tokens",
            "error.type",
            "gen_ai.tool.definitions",
            "llm.finish_reason",
            "stepstream.consent",
            "stepstream.step_index",
            "stepstream.trajectory_id",
            "user.id",
        ]
    ),
    st.sampled_from(["none", "3", "", '[{"name": "lookup"}]']),
    max_size=1,
)
SPANS = st.fixed_dictionaries(
    {
        "trace": st.sampled_from(TRACES),
        "id": st.integers(1, 6),
        "parent": st.sampled_from([0, 0, 6, 6, 5]),
        "start": st.sampled_from([0, 10**18, 10**18 + 1]),
        "attributes": ATTRIBUTES,
        "rare": st.just({}) | RARE,
        "failed": st.sampled_from([False] * 9 + [True]),
        "event": st.sampled_from([""] * 9 + ["gen_ai.choice", "gen_ai.evaluation.result"]),
    }
)
AGENTS = st.fixed_dictionaries(
    {
        "trace": st.sampled_from(TRACES),
        "id": st.sampled_from([6, 6, 6, 5]),
        "parent": st.sampled_from([0, 0, 0, 5]),
        "start": st.just(10**18),
        "attributes": st.fixed_dictionaries(
            {"gen_ai.operation.name": st.sampled_from(["invoke_agent", "invoke_agent", "execute_tool"])},
            optional={"gen_ai.agent.name": TEXTS},
        ),
        "rare": st.just({}) | RARE,
        "failed": st.booleans(),
        "event": st.sampled_from([""] * 9 + ["gen_ai.evaluation.result"]),
    }
)
RESOURCES = st.sampled_from(
    [
        {"service.name": "orders"},
        {},
        {"stepstream.environment": "e"},
        {"stepstream.consent": "no"},
        {"user.id": "maria"},
    ]
)


def put(message: Any, value: Any) -> None:
    """Sets an `AnyValue`."""
    if isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, int):
        message.int_value = value
    elif isinstance(value, float):
        message.double_value = value
    elif isinstance(value, list):
        message.array_value.SetInParent()
        for item in value:
            put(message.array_value.values.add(), item)
    else:
        message.string_value = value


def export(parts: list[tuple[dict[str, str], list[dict[str, Any]]]]) -> bytes:
    """A request, of resources and spans."""
    request = ExportTraceServiceRequest()
    for resource, spans in parts:
        group = request.resource_spans.add()
        for name, value in resource.items():
            put(group.resource.attributes.add(key=name).value, value)
        scope = group.scope_spans.add()
        for fields in spans:
            span = scope.spans.add(trace_id=fields["trace"], span_id=fields["id"].to_bytes(8, "big"), name="chat")
            if fields["parent"]:
                span.parent_span_id = fields["parent"].to_bytes(8, "big")
            span.start_time_unix_nano, span.end_time_unix_nano = fields["start"], fields["start"] + 8 * 10**8
            for name, value in {**fields["attributes"], **fields["rare"]}.items():
                put(span.attributes.add(key=name).value, value)
            if fields["failed"]:
                span.status.code = 2
            if fields["event"]:
                span.events.add(name=fields["event"], time_unix_nano=10**18)
    return request.SerializeToString()


def encoded_entry(name: str, value: bytes) -> bytes:
    """Encode an attribute."""
    return b"\x0a" + bytes((len(name),)) + name.encode() + b"\x12" + bytes((len(value),)) + value


REQUESTS = st.lists(st.tuples(RESOURCES, st.lists(SPANS | AGENTS, max_size=5)), min_size=1, max_size=2).map(export)


@settings(max_examples=60)
@given(st.lists(REQUESTS, min_size=1, max_size=3))
def test_both_paths_give_the_same_records(bodies: list[bytes]) -> None:
    same(*bodies, bodies[0])


def run(number: int, **more: Any) -> list[dict[str, Any]]:
    """An agent's run of three calls, whose prompts grow."""
    prompt: list[Any] = [{"role": "user", "parts": [{"type": "text", "content": "Where is 4711?"}]}]
    spans: list[dict[str, Any]] = []
    plain = {"trace": bytes([number]) * 16, "rare": {}, "failed": False, "event": ""}
    for call in (1, 2, 3):
        answer = {"role": "assistant", "parts": [{"type": "text", "content": f"{call}"}], "finish_reason": "stop"}
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "demo",
            "gen_ai.input.messages": json.dumps(prompt),
            "gen_ai.output.messages": json.dumps([answer]),
            **more,
        }
        prompt = [*prompt, {"role": "assistant", "parts": answer["parts"]}, {**prompt[0]}]
        spans.append(plain | {"id": call, "parent": 9, "start": 10**18 + call, "attributes": attributes})
    agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "clerk"}
    return [*spans, plain | {"id": 9, "parent": 0, "start": 10**18, "attributes": agent}]


def test_an_agents_run_takes_the_fast_path() -> None:
    runs = [span for number in range(3) for span in run(number)]
    assert same(export([({"service.name": "orders"}, runs)]), export([({}, run(7)[::-1])])) == 12
    assert same(export([({"service.name": "orders"}, run(1))]), export([({"service.name": "orders"}, run(1))])) == 6


def test_single_calls_take_the_fast_path() -> None:
    alone = [span | {"parent": 0} for span in run(1)[:3]]
    assert same(*(export([({}, [span])]) for span in alone)) == 3


@pytest.mark.parametrize("name", ["user.id", "gen_ai.conversation.id", "stepstream.step_index", "error.type"])
def test_calls_with_identity_attributes_take_the_general_path(name: str) -> None:
    assert same(export([({}, run(1, **{name: "3"}))])) == 0


@pytest.mark.parametrize("generation", GENERATIONS)
def test_both_paths_agree_on_recorded_exports(generation: str) -> None:
    bodies = [request.body for request in recorded_requests(generation) if request.path == "/v1/traces"]
    same(*bodies, *bodies)


@pytest.mark.parametrize("malformed", [b"\x0a\x02\xff\xff", b"\x0a\x05ab", b"\xff", b"\x2a\x01\xff"])
@pytest.mark.parametrize("name", ["gen_ai.request.model", "gen_ai.output.messages", "user.id"])
def test_malformed_values_reject_the_whole_request(name: str, malformed: bytes) -> None:
    request = TraceRequest.FromString(export([({}, run(1) + run(2))]))
    attributes = request.resource_spans[0].scope_spans[0].spans[5].attributes
    attributes[:] = [entry for entry in attributes if split_entries([entry]).keys() != {name}]
    attributes.append(encoded_entry(name, malformed))
    path = Path(PlainStepWriter)
    with pytest.raises(BadRequest):
        path.take(request.SerializeToString())


CHAT = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "demo",
    "gen_ai.output.messages": '[{"role": "assistant", "parts": [{"type": "text", "content": "4711"}]}]',
}


def call(number: int, attributes: dict[str, Any]) -> dict[str, Any]:
    """A span of a call in a trace of its own."""
    return {
        "trace": bytes([number]) * 16,
        "id": 1,
        "parent": 0,
        "start": 10**18,
        "attributes": attributes,
        "rare": {},
        "failed": False,
        "event": "",
    }


@pytest.mark.parametrize(
    ("more", "plain"),
    [
        ({"server.port": 443}, 2),
        ({"server.host": "h"}, 2),
        ({"gen_ai.response.id": "r" * 20}, 2),
        ({"gen_ai.usage.input_tokens": 5}, 2),
        ({"gen_ai.request.seed": 5}, 2),
        ({"error.type": "timeout"}, 1),
        ({"gen_ai.request.top_k": 5}, 1),
        ({"user.id": "maria"}, 1),
        ({"a" * 127: "x"}, 2),
        ({"a" * 128: "x"}, 1),
    ],
)
def test_as_many_attributes_as_before_have_other_names(more: dict[str, Any], plain: int) -> None:
    assert same(export([({}, [call(1, {**CHAT, "server.port": 80}), call(2, {**CHAT, **more})])])) == plain


@pytest.mark.parametrize("size", [*range(120, 135), 7900, 8100, 8300, 15_900, 15_990, 16_000, 16_400])
def test_texts_of_all_encoded_lengths(size: int) -> None:
    message = '[{"role": "assistant", "parts": [{"type": "text", "content": ""}]}]'
    padded = message.replace('""', f'"{"x" * (size - len(message))}"')
    assert len(padded) == size
    spans = [call(n, {**CHAT, "gen_ai.output.messages": padded, "gen_ai.response.id": "r" * size}) for n in (1, 2)]
    assert same(export([({}, spans)])) == (2 if size < 16_384 else 0)


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\x0a",
        b"\x0a\x14",
        encoded_entry("gen_ai.request.model", b"\x0a\x05other"),
        encoded_entry("gen_ai.output.messages", b"\x0a\x02[]"),
        encoded_entry("gen_ai.request.model", b"\x0a\x05other")[22:] + b"\x0a\x14gen_ai.request.model",
    ],
)
def test_entries_with_unusual_encodings_and_names_given_twice(entry: bytes) -> None:
    request = TraceRequest.FromString(export([({}, [call(n, {**CHAT, "server.port": 80}) for n in (1, 2)])]))
    request.resource_spans[0].scope_spans[0].spans[1].attributes[-1] = entry
    body = request.SerializeToString()
    outcomes = []
    for path in (Path(PlainStepWriter), Path(NoFastPath)):
        try:
            outcomes.append(path.take(body))
        except BadRequest as error:
            outcomes.append([type(error)])
    assert outcomes[0] == outcomes[1]
