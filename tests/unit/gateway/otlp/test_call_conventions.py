"""Test that the exports of every generation of GenAI instrumentation give the same steps."""

import json
from typing import Any

import pytest
from otlp_fixtures import GENERATIONS, recorded_requests, trace_id

from stepstream.core.slices import at_once
from stepstream.services.gateway.otlp import wire
from stepstream.services.gateway.otlp.assembly import Assembler
from stepstream.services.gateway.otlp.calls import sampling_of
from stepstream.services.gateway.otlp.identity import Defaults
from stepstream.services.gateway.otlp.span_index import SpanIndex
from stepstream.services.gateway.otlp.spans import logs_of, spans_of
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
    assert [step["finish_reason"] for step in (first, second, last)] == ["tool_calls", "tool_calls", "stop"]
    assert [step["end"] for step in (first, second, last)] == ["open", "open", "terminated"]


@pytest.mark.parametrize("generation", ["openllmetry", "openllmetry-indexed", "openinference"])
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
        assert (step["sampling"]["temperature"], step["sampling"]["max_tokens"]) == (0.5, 100)
        assert step["duration_ms"] > 0
        assert step["error"] is None
    assert [len(step["response"]["tool_calls"]) for step in steps] == [2, 1, 0]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_json_and_protobuf_give_the_same_steps(generation: str) -> None:
    assert steps_of(recorded_trace(generation, as_json=True)) == steps_of(recorded_trace(generation))


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
