"""Test that the exports of every generation of GenAI instrumentation give the same steps."""

import json
from typing import Any

import pytest
from otlp_fixtures import GENERATIONS, recorded_requests, trace_id

from stepstream.core.slices import at_once
from stepstream.services.gateway.otlp import logfire, wire
from stepstream.services.gateway.otlp.assembly import Assembler
from stepstream.services.gateway.otlp.calls import sampling_of
from stepstream.services.gateway.otlp.identity import Defaults
from stepstream.services.gateway.otlp.span_index import SpanIndex
from stepstream.services.gateway.otlp.spans import OTHER, logs_of, role_of, spans_of
from stepstream.services.gateway.otlp.trace import Trace
from stepstream.topics.events import new_sampling

DEFAULTS = Defaults("shop", "analyse", "agent")


def recorded_trace(generation: str, *, as_json: bool = False) -> Trace:
    trace = Trace(trace_id(generation))
    for request in recorded_requests(generation, as_json=as_json):
        if request.path == "/v1/traces":
            for span in spans_of(at_once(wire.traces(request.body, request.content_type))):
                trace.add(span)
        else:
            for log in logs_of(at_once(wire.logs(request.body, request.content_type))):
                trace.add_log(log)
    return trace


def steps_of(trace: Trace) -> list[dict[str, Any]]:
    records = Assembler("test/1", SpanIndex(10)).records(trace, DEFAULTS)
    return [record.record for record in records if record.topic == "steps"]


WITHOUT_FINISH_REASON = {
    "logfire-latest-responses",
    "logfire-latest-responses-streamed",
    "logfire-request-data",
    "logfire-request-data-streamed",
    "logfire-responses",
    "logfire-version-1-streamed",
    "openinference-responses",
    "openinference-responses-streamed",
}
WITHOUT_SAMPLING = {"logfire-responses"}


@pytest.mark.parametrize("generation", [name for name in GENERATIONS if name != "no-content"])
def test_a_run_with_tools_gives_three_complete_steps(generation: str) -> None:
    trace = recorded_trace(generation)
    first, second, last = steps_of(trace)

    assert [first["step_index"], second["step_index"], last["step_index"]] == [0, 1, 2]
    assert {step["trajectory_id"] for step in (first, second, last)} == {trace_id(generation)}
    assert [(m["role"], m["content"]) for m in first["messages"]] == [
        ("system", "Help with orders."),
        ("user", "Where are 4711 and 4712?"),
    ]
    calls = first["response"]["tool_calls"]
    assert [(c["call_id"], c["name"], c["arguments"].replace(" ", "")) for c in calls] == [
        ("call_a", "lookup", '{"order":4711}'),
        ("call_b", "lookup", '{"order":4712}'),
    ]
    assert all(c["result"].startswith("lookup of") and c["duration_ms"] >= 0 and c["error"] is None for c in calls)
    # Only what is new is stored: the results, after the prompt and response before.
    assert second["prompt_shared_messages"] == 3
    assert [(m["role"], m["tool_call_id"]) for m in second["messages"]] == [("tool", "call_a"), ("tool", "call_b")]
    assert second["response"]["content"] == "Let me refund."
    assert [c["name"] for c in second["response"]["tool_calls"]] == ["refund"]
    assert last["response"]["content"] == "4711 was sent; 4712 is refunded."
    reasons = ["", "", ""] if generation in WITHOUT_FINISH_REASON else ["tool_calls", "tool_calls", "stop"]
    assert [step["finish_reason"] for step in (first, second, last)] == reasons
    assert [step["end"] for step in (first, second, last)] == ["open", "open", "terminated"]


@pytest.mark.parametrize(
    "generation",
    [
        "openllmetry",
        "openllmetry-indexed",
        "openinference",
        "openinference-responses",
        "logfire-request-data",
        "logfire-version-1-streamed",
        "logfire-latest",
    ],
)
def test_unchanged_tool_definitions_are_sent_once(generation: str) -> None:
    first, *others = steps_of(recorded_trace(generation))
    tools = [tool.get("function", tool) for tool in json.loads(first["tool_definitions"])]
    arguments = {"type": "object", "properties": {"order": {"type": "integer"}}}
    assert [(tool["name"], tool["parameters"]) for tool in tools] == [("lookup", arguments), ("refund", arguments)]
    assert [step["tool_definitions"] for step in others] == [None, None]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_steps_have_the_same_structure_without_content(generation: str) -> None:
    steps = steps_of(recorded_trace(generation))
    assert [step["usage_prompt_tokens"] for step in steps] == [20, 40, 50]
    assert [step["usage_response_tokens"] for step in steps] == [12, 14, 15]
    for step in steps:
        assert (step["model"], step["agent"], step["user"]) == ("demo", "order-agent", "maria")
        assert (step["tenant"], step["consent"], step["fidelity"]) == ("shop", "analyse", "span")
        if generation not in WITHOUT_SAMPLING:
            assert (step["sampling"]["temperature"], step["sampling"]["max_tokens"]) == (0.5, 100)
        assert step["duration_ms"] > 0
        assert step["error"] is None
    assert [len(step["response"]["tool_calls"]) for step in steps] == [2, 1, 0]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_json_and_protobuf_give_the_same_steps(generation: str) -> None:
    assert steps_of(recorded_trace(generation, as_json=True)) == steps_of(recorded_trace(generation))


def test_a_failed_streamed_call_of_logfire_is_a_step() -> None:
    trace = recorded_trace("logfire-latest-streamed")
    requests = [span for span in trace.spans.values() if span.name.startswith("Chat Completion")]
    assert {span.role for span in requests} == {OTHER}
    failed = requests[0]
    failed.failed, failed.role = True, role_of(failed.attributes, failed.name, failed=True)
    steps = steps_of(trace)
    assert (steps[0]["finish_reason"], len(steps[0]["messages"])) == ("error", 2)
    assert len(steps) == 4


def test_a_log_of_a_stream_began_with_the_stream() -> None:
    steps = steps_of(recorded_trace("logfire-request-data-streamed"))
    assert all(0 < step["duration_ms"] < 60_000 for step in steps)


def test_answers_of_logfires_other_clients_are_read() -> None:
    request = {"system": "Help.", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}
    call = {"function": {"name": "get", "arguments": '{"input":{"order":1}}'}}
    attributes = {
        "logfire.span_type": "span",
        "request_data": json.dumps(request),
        "response_data": json.dumps({"message": {"role": "assistant", "content": "I look.", "tool_calls": [call]}}),
    }
    prompt, answer, _ = logfire.content_of(attributes, "logfire.anthropic")
    assert [(m["role"], m["content"]) for m in prompt] == [("system", "Help."), ("user", "Hi")]
    assert answer is not None
    assert [(c["name"], c["arguments"]) for c in answer["tool_calls"]] == [("get", '{"order":1}')]
    attributes["request_data"] = json.dumps({"prompt": "Once"})
    attributes["response_data"] = json.dumps({"text": "upon", "finish_reason": "length"})
    prompt, answer, finish = logfire.content_of(attributes, "logfire.openai")
    assert (prompt[0]["content"], answer is not None and answer["content"], finish) == ("Once", "upon", "length")


@pytest.mark.parametrize("value", ["", "null", "[]", "3", '{"messages": 3}', '{"messages": [3, null]}', "{"])
@pytest.mark.parametrize("name", ["request_data", "response_data", "events"])
def test_malformed_attributes_of_logfire_raise_nothing(name: str, value: str) -> None:
    trace = recorded_trace("logfire-version-1")
    for span in trace.spans.values():
        span.attributes[name] = value
        span.role = role_of(span.attributes, span.name)
    assert len(steps_of(trace)) <= 3


def test_spans_sent_twice_give_the_same_steps() -> None:
    assembler = Assembler("test/1", SpanIndex(10))
    trace = recorded_trace("openinference")
    first, again = assembler.records(trace, DEFAULTS), assembler.records(trace, DEFAULTS)
    assert [(r.record["event_id"], r.record["step_index"]) for r in first] == [
        (r.record["event_id"], r.record["step_index"]) for r in again
    ]


def test_sampling_comes_from_attributes_and_invocation_parameters() -> None:
    attributes = {"gen_ai.request.top_k": 20.0, "gen_ai.request.frequency_penalty": 0.5, "gen_ai.output.type": "json"}
    recorded = new_sampling(top_k=20, frequency_penalty=0.5, constraint="json_object")
    assert sampling_of(attributes, {}) == recorded
    invocation = {"temperature": 0.7, "top_k": -1, "min_p": 0.1, "logit_bias": {"5": 1}, "tool_choice": "required"}
    assert sampling_of({}, invocation) == new_sampling(
        temperature=0.7, min_p=0.1, logit_bias=True, constraint="tool_choice"
    )
