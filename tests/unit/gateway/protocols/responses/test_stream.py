"""A chat completion's chunks, however cut, become valid events that give the same response."""

from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from stepstream.services.gateway.http.sse import EventParser
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.services.gateway.protocols.responses.protocol import RESPONSES, ResponsesTranslation

Raw = dict[str, Any]

TYPES: dict[str, type[BaseModel]] = {
    get_args(model.model_fields["type"].annotation)[0]: model for model in get_args(get_args(ResponseStreamEvent)[0])
}
REQUEST: Raw = {"model": "m", "input": "go", "stream": True, "tools": [{"type": "custom", "name": "run"}]}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
USAGE = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}


def translation() -> ResponsesTranslation:
    return RESPONSES.translation(REQUEST, None, seed="s")


def events_of(out: bytes) -> list[Raw]:
    """Parse events, each validated by the API's type."""
    parser = EventParser()
    parsed = []
    for event in parser.feed(out):
        assert event.data is not None
        raw = orjson.loads(event.data)
        assert event.raw.startswith(b"event: " + raw["type"].encode() + b"\n")
        TYPES[raw["type"]].model_validate(raw, strict=True)
        parsed.append(raw)
    assert parser.rest() == b""
    return parsed


def chunk(delta: Raw, finish_reason: str | None = None) -> Raw:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "c", "object": "chat.completion.chunk", "created": 17, "model": "m@3", "choices": [choice]}


def cut(draw: st.DrawFn, text: str) -> list[str]:
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def take(draw: st.DrawFn, lines: list[list[Raw]]) -> list[Raw]:
    unfinished = [line for line in lines if line]
    return [draw(st.sampled_from(unfinished)).pop(0)] if unfinished else []


@st.composite
def streams(draw: st.DrawFn) -> tuple[Raw, list[Raw]]:
    """A completion's choice, and its chunks.

    Text comes before, between and after calls. Arguments of several calls are interleaved. A call begins after the name
    of the one before is complete.
    """
    reasoning, content = draw(TEXT), draw(TEXT)
    calls: list[Raw] = [
        {"id": f"c{n}", "type": "function", "function": {"name": draw(st.sampled_from(["get", "run"])), "arguments": a}}
        for n, a in enumerate(draw(st.lists(TEXT, max_size=3)))
    ]
    finish_reason = draw(st.sampled_from(["stop", "tool_calls", "length", "content_filter"]))
    deltas: list[Raw] = [{"reasoning_content": piece} for piece in cut(draw, reasoning)]
    lines: list[list[Raw]] = [[{"content": piece} for piece in cut(draw, content)]]
    for index, call in enumerate(calls):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        for _ in range(draw(st.integers(0, 4))):
            deltas += take(draw, lines)
        named: list[Raw] = [{"function": {"name": piece, "arguments": ""}} for piece in cut(draw, name)]
        named[0]["id"] = call["id"]
        deltas += [{"tool_calls": [{"index": index} | piece]} for piece in named]
        argued = [{"function": {"arguments": piece}} for piece in cut(draw, arguments)]
        lines.append([{"tool_calls": [{"index": index} | piece]} for piece in argued])
    while any(lines):
        deltas += take(draw, lines)
    message = {"content": content, "reasoning_content": reasoning or None, "tool_calls": calls}
    chunks = [
        chunk({"role": "assistant", "content": ""}),
        *[chunk(delta) for delta in deltas],
        chunk({}, finish_reason),
    ]
    chunks.append({"id": "c", "choices": [], "usage": USAGE})
    return {"message": message, "finish_reason": finish_reason}, chunks


@given(streams())
def test_any_chunking_gives_the_same_response(stream: tuple[Raw, list[Raw]]) -> None:
    choice, chunks = stream
    call = translation()
    events = [event for one in chunks for event in events_of(call.feed(one))] + events_of(call.end())
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    status = "completed" if choice["finish_reason"] in ("stop", "tool_calls") else "incomplete"
    final = events[-1]
    assert final["type"] == f"response.{status}"
    Response.model_validate(final["response"], strict=True)

    # The last event equals the sum of all others, and the whole answer.
    output = final["response"]["output"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["item"] for event in sorted(done, key=lambda event: event["output_index"])] == output
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["item"]["id"] for event in added] == [item["id"] for item in output]
    read_along = RESPONSES.stream()
    for event in events[:-1]:
        if event["type"] != "response.output_item.done":
            read_along.add(event)
    reply = translation().reply({"created": 17, "model": "m@3", "choices": [choice], "usage": USAGE})
    assert final["response"]["usage"] == reply["usage"]
    answer = RESPONSES.answer(final["response"])
    assert read_along.answer().message == answer.message == RESPONSES.answer(reply).message
    contents = {item["type"]: item for item in output}
    text = "".join(part["text"] for part in contents.get("message", {}).get("content", []))
    assert text == choice["message"]["content"]


@given(streams())
def test_the_recorded_answer_equals_its_repetition_in_the_next_request(stream: tuple[Raw, list[Raw]]) -> None:
    _, chunks = stream
    call, recorded = translation(), CHAT.stream()
    for one in chunks:
        recorded.add(one)
        call.feed(one)
    final = events_of(call.end())[-1]["response"]
    items = [{"role": "user", "content": "go"}, *final["output"], {"role": "user", "content": "on"}]
    follow_up = RESPONSES.translation({"model": "m", "input": items}, None)
    messages = CHAT.read(follow_up.request).messages
    custom = [item for item in final["output"] if item["type"] == "custom_tool_call"]
    answer = recorded.answer().message
    if custom:  # the gateway serialises its text as JSON, in its own format
        for messages_call, call_recorded in zip(messages[1]["tool_calls"], answer["tool_calls"], strict=True):
            if call_recorded["name"] == "run":
                call_recorded["arguments"] = messages_call["arguments"]
    has_content = answer["content"] or answer["tool_calls"] or answer["reasoning"]
    assert len(messages) == (3 if has_content else 2)
    assert not has_content or messages[1] == answer


def test_reasoning_text_and_calls_give_their_events_in_order() -> None:
    call = translation()
    deltas: list[Raw] = [{"reasoning": "hm"}, {"content": "He"}, {"content": "llo"}]
    deltas.append({"tool_calls": [{"index": 0, "id": "c0", "function": {"name": "get", "arguments": "{}"}}]})
    deltas.append(
        {"tool_calls": [{"index": 1, "id": "c1", "function": {"name": "run", "arguments": '{"input":"ls"}'}}]}
    )
    out = b"".join([call.feed(chunk(delta)) for delta in deltas] + [call.feed(chunk({}, "tool_calls")), call.end()])
    assert [event["type"].removeprefix("response.") for event in events_of(out)] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_item.added",
        "function_call_arguments.delta",
        "output_item.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "function_call_arguments.done",
        "output_item.done",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    assert call.end() == b""


@pytest.mark.parametrize("failure", ["gateway error", "upstream error", "no end", "no chunk"])
def test_a_broken_stream_ends_with_error_and_response_failed(failure: str) -> None:
    call = translation()
    out = b"" if failure == "no chunk" else call.feed(chunk({"content": "He"}))
    if failure == "upstream error":
        out += call.feed({"error": {"message": "gone", "type": "server_error"}})
        out += call.feed(chunk({"content": "llo"}))
    out += call.end("gone" if failure in ("gateway error", "no chunk") else None)
    events = events_of(out)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    error, failed = events[-2:]
    assert failed["response"]["error"]["message"] == error["message"]
    assert error["message"] == (
        "the upstream ended the stream before its answer was complete" if failure == "no end" else "gone"
    )
    Response.model_validate(failed["response"], strict=True)
    output = failed["response"]["output"]
    assert [item["status"] for item in output] == ([] if failure == "no chunk" else ["incomplete"])


def test_a_call_whose_index_is_no_number_does_not_break_the_stream() -> None:
    reply = translation()
    out = b""
    indices: list[Any] = [0, "1", None, {}]
    for index in indices:
        call = {"index": index, "id": "c", "function": {"name": "get"}}
        out += reply.feed(chunk({"tool_calls": [call]}))
    events = events_of(out + reply.feed(chunk({}, "tool_calls")) + reply.end())
    assert events[-1]["type"] == "response.completed"


def test_refusal_and_logprobs_are_part_of_the_message() -> None:
    call = RESPONSES.translation(REQUEST | {"include": ["message.output_text.logprobs"]}, None)
    entry = {"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}
    first = chunk({"content": "a"})
    first["choices"][0]["logprobs"] = {"content": [entry]}
    events = events_of(call.feed(first) + call.feed(chunk({"refusal": "no"}, "stop")) + call.end())
    text, refusal = events[-1]["response"]["output"][0]["content"]
    assert text["logprobs"] == [{"token": "a", "logprob": -0.5, "bytes": [], "top_logprobs": []}]
    assert refusal == {"type": "refusal", "refusal": "no"}


def test_gateway_errors_have_openais_form() -> None:
    assert orjson.loads(RESPONSES.error_body("m", "backlog_full"))["error"]["type"] == "backlog_full"
    assert events_of(RESPONSES.error_event("m", "backlog_full"))[0]["code"] == "backlog_full"
