"""Test the steps of nested agents, tools, conversations and hand-offs in a trace."""

import random
from typing import Any

import pytest
from hand_made_traces import AGENT, CHAT, DEFAULTS, TOOL, TRACE, answer, assembled, span
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.gateway.otlp.assembly import Assembler
from stepstream.services.gateway.otlp.span_index import SpanIndex
from stepstream.services.gateway.otlp.spans import Event, Span
from stepstream.services.gateway.otlp.trace import Trace


def test_an_agent_that_is_a_tool_is_a_child_of_the_step_that_called_it() -> None:
    steps, _ = assembled(
        span("r", "", 0, 20, a=AGENT, gen_ai__agent__name="boss"),
        span("c1", "r", 1, a=CHAT, gen_ai__output__messages=answer("", ("t1", "research"))),
        span("c2", "r", 3, a=CHAT, gen_ai__output__messages=answer("meanwhile")),
        span("t", "r", 5, 9, a=TOOL, gen_ai__tool__call__id="t1", gen_ai__tool__call__result="found"),
        span("s", "t", 5, 9, a=AGENT, gen_ai__agent__name="researcher"),
        span("c3", "s", 6, a=CHAT),
        span("c4", "s", 7, a=CHAT),
        span("c5", "r", 10, a=CHAT),
    )
    own = [step for step in steps if step["trajectory_id"] == TRACE]
    child = [step for step in steps if step["trajectory_id"] != TRACE]
    assert [step["step_index"] for step in own] == [0, 1, 2]
    assert [step["step_index"] for step in child] == [0, 1]
    assert {step["trajectory_id"] for step in child} == {f"{TRACE}-s"}
    assert {(step["parent_trajectory_id"], step["parent_step_index"]) for step in child} == {(TRACE, 0)}
    assert {step["agent"] for step in own} == {"boss"}
    assert {step["agent"] for step in child} == {"researcher"}
    assert [step["end"] for step in own] == ["open", "open", "terminated"]
    assert [step["end"] for step in child] == ["open", "terminated"]
    call = own[0]["response"]["tool_calls"][0]
    assert (call["result"], call["error"], call["duration_ms"]) == ("found", None, 4000.0)


def test_an_agent_behind_a2a_is_one_child() -> None:
    """The client's and the server's spans and the remote agent's own: one boundary, since only one has calls."""
    steps, _ = assembled(
        span("r", "", 0, 20, a=AGENT, gen_ai__agent__name="boss"),
        span("c1", "r", 1, a=CHAT),
        span("x", "r", 2, 9, rpc__system="a2a"),
        span("y", "x", 3, 8, name="a2a.server.on_message_send"),
        span("s", "y", 4, 7, a=AGENT, gen_ai__agent__name="remote"),
        span("c2", "s", 5, a=CHAT),
    )
    own, child = steps
    assert (child["trajectory_id"], child["parent_trajectory_id"], child["parent_step_index"]) == (
        f"{TRACE}-s",
        own["trajectory_id"],
        0,
    )
    assert child["agent"] == "remote"


def test_sibling_agents_are_a_hand_off_and_the_same_agent_continues() -> None:
    steps, _ = assembled(
        span("r", "", 0, 20),
        span("a", "r", 1, 4, a=AGENT, gen_ai__agent__name="triage"),
        span("c1", "a", 2, a=CHAT),
        span("b", "r", 5, 8, a=AGENT, gen_ai__agent__name="refunds"),
        span("c2", "b", 6, a=CHAT),
        span("a2", "r", 9, 12, a=AGENT, gen_ai__agent__name="triage"),
        span("c3", "a2", 10, a=CHAT),
    )
    assert sorted((s["trajectory_id"], s["step_index"], s["agent"], s["parent_step_index"]) for s in steps) == [
        (TRACE, 0, "triage", None),
        (TRACE, 1, "triage", None),
        (f"{TRACE}-b", 0, "refunds", 0),
    ]


def test_an_mcp_client_and_its_server_are_one_call_of_a_step_without_content() -> None:
    failing = {"mcp.method.name": "tools/call", "gen_ai.tool.name": "search", "error.type": "timeout"}
    (step,), _ = assembled(
        span("r", "", 0, 20, a=AGENT),
        span("c", "r", 1, a=CHAT),
        span("m", "r", 3, 5, a=failing),
        span("n", "m", 4, 5, a=failing),
        span("l", "r", 6, 7, mcp__method__name="tools/list"),
    )
    (call,) = step["response"]["tool_calls"]
    assert (call["call_id"], call["name"], call["error"], call["duration_ms"]) == ("m", "search", "timeout", 2000.0)


def test_tools_without_ids_are_matched_by_name_in_order() -> None:
    (step,), _ = assembled(
        span("r", "", 0, 20, a=AGENT),
        span("c", "r", 1, a=CHAT, gen_ai__output__messages=answer("", ("1", "get"), ("2", "get"), ("3", "put"))),
        span("x", "r", 3, openinference__span__kind="TOOL", tool__name="get", output__value="first"),
        span("y", "r", 4, openinference__span__kind="TOOL", tool__name="get", output__value="second"),
    )
    assert [call["result"] for call in step["response"]["tool_calls"]] == ["first", "second", None]


def test_a_call_reported_by_two_instrumentations_is_one_step() -> None:
    (step,), _ = assembled(
        span("o", "", 0, 5, openinference__span__kind="LLM"),
        span("i", "o", 1, 4, a=CHAT, gen_ai__output__messages=answer("hello")),
    )
    assert step["response"]["content"] == "hello"


def test_an_error_has_its_class() -> None:
    failed = span("c", "", 1, a=CHAT)
    failed.failed = True
    failed.events = [Event("exception", 1, {"exception.type": "RateLimitError"})]
    (step,), _ = assembled(failed)
    assert (step["error"], step["finish_reason"]) == ("RateLimitError", "error")


def test_a_conversation_continues_over_traces_and_a_restart() -> None:
    def turn(trace_id: str, history: int) -> Span:
        prompt = [
            {"role": role, "parts": [{"type": "text", "content": role}]} for role in ("user", "assistant") * history
        ]
        call = span("c", "", 1, a=CHAT, gen_ai__conversation__id="chat-7", gen_ai__input__messages=prompt)
        call.trace_id = trace_id
        return call

    def index(assembler: Assembler, trace_id: str, history: int) -> int:
        trace = Trace(trace_id)
        trace.add(turn(trace_id, history))
        (record,) = assembler.records(trace, DEFAULTS)
        assert record.key == "chat-7"
        return int(record.record["step_index"])

    assembler = Assembler("test/1", SpanIndex(100))
    assert [index(assembler, f"{n:032x}", n) for n in range(3)] == [0, 1, 2]
    assert index(assembler, f"{1:032x}", 1) == 1  # sent again
    assert index(Assembler("test/1", SpanIndex(100)), f"{3:032x}", 3) == 3


def test_identity_comes_from_the_span_its_ancestors_and_its_resource() -> None:
    (step,), _ = assembled(
        span("r", "", 0, 20, a=AGENT, stepstream__task_id="refund-4711", stepstream__consent="none", user__id="maria"),
        span("c", "r", 1, a=CHAT, stepstream__group_id="g", stepstream__trajectory_id="mine", stepstream__step_index=5),
    )
    assert (step["task_id"], step["consent"], step["user"], step["group_id"]) == ("refund-4711", "none", "maria", "g")
    assert (step["trajectory_id"], step["step_index"], step["agent"]) == ("mine", 5, "shop")


SPANS = [
    span("r", "", 0, 30, a=AGENT),
    *(span(f"c{n}", "r", 1 + 2 * n, a=CHAT, gen_ai__output__messages=answer("", (f"t{n}", "get"))) for n in range(4)),
    *(span(f"t{n}", "r", 2 + 2 * n, a=TOOL, gen_ai__tool__call__id=f"t{n}") for n in range(4)),
    span("s", "t2", 6, 7, a=AGENT, gen_ai__agent__name="other"),
    span("d", "s", 6, a=CHAT),
]


@given(st.randoms(use_true_random=False))
def test_the_order_of_spans_does_not_matter(rng: random.Random) -> None:
    shuffled = rng.sample(SPANS, len(SPANS))
    assert assembled(*shuffled) == assembled(*SPANS)


@pytest.mark.parametrize("parents", [{"a": "b", "b": "a"}, {"a": "a", "b": "a"}])
def test_cycles_of_spans_still_give_steps(parents: dict[str, str]) -> None:
    steps, _ = assembled(*(span(name, parent, 1, a=CHAT) for name, parent in parents.items()))
    assert len(steps) <= 2


def test_tool_definitions_are_sent_on_change_and_may_come_from_the_agent() -> None:
    tools: list[Any] = ['[{"type": "function", "name": "lookup"}]', [{"type": "function", "name": "refund"}]]
    prompt: list[Any] = [{"role": "user", "parts": [{"type": "text", "content": "go"}]}]
    spans = [span("a" * 16, "", 0, 9, a=AGENT)]
    for at, definitions in enumerate([tools[0], tools[0], tools[1], None]):
        output = answer(f"answer {at}")
        a = CHAT | {"gen_ai.input.messages": list(prompt), "gen_ai.output.messages": output}
        a |= {} if definitions is None else {"gen_ai.tool.definitions": definitions}
        spans.append(span(f"{at}" * 16, "a" * 16, at, a=a))
        prompt += output
    steps, _ = assembled(*spans)
    lookup, refund = (f'[{{"type":"function","name":"{name}"}}]' for name in ("lookup", "refund"))
    assert [step["tool_definitions"] for step in steps] == [lookup, None, refund, "[]"]
    spans[0].attributes["gen_ai.tool.definitions"] = tools[0]
    steps, _ = assembled(*spans)
    assert [step["tool_definitions"] for step in steps] == [lookup, None, refund, lookup]
