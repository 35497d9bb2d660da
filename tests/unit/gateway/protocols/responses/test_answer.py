"""A reply of the Responses API gives its answer, whole, streamed or cut off."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.gateway.protocols.responses.protocol import RESPONSES
from stepstream.services.gateway.streams import PARSE_ERRORS

Raw = dict[str, Any]

REASONING = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Let me see."}]}
MESSAGE = {
    "type": "message",
    "id": "msg",
    "role": "assistant",
    "status": "completed",
    "content": [
        {"type": "output_text", "text": "Günther: 7", "annotations": []},
        {"type": "refusal", "refusal": "no more"},
    ],
}
CALL = {
    "type": "function_call",
    "id": "fc",
    "call_id": "c0",
    "name": "get",
    "arguments": '{"a":1}',
    "status": "completed",
}
CUSTOM = {"type": "custom_tool_call", "id": "ctc", "call_id": "c1", "name": "run", "input": "ls"}
OUTPUT: list[Raw] = [REASONING, MESSAGE, CALL, CUSTOM]
USAGE = {"input_tokens": 5, "output_tokens": 9, "total_tokens": 14}
WHOLE: Raw = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "model": "m-1",
    "output": OUTPUT,
    "usage": USAGE,
}


def test_a_whole_response_gives_its_answer() -> None:
    answer = RESPONSES.answer(WHOLE)
    assert answer.message["content"] == "Günther: 7no more"
    assert answer.message["reasoning"] == "Let me see."
    assert [(call["call_id"], call["name"], call["arguments"]) for call in answer.message["tool_calls"]] == [
        ("c0", "get", '{"a":1}'),
        ("c1", "run", '{"input":"ls"}'),
    ]
    assert (answer.response_id, answer.model, answer.finish_reason, answer.error) == (
        "resp_1",
        "m-1",
        "tool_calls",
        None,
    )
    assert (answer.usage_prompt_tokens, answer.usage_response_tokens) == (5, 9)
    assert answer.token_ids is None


@pytest.mark.parametrize(
    ("fields", "finish_reason", "error"),
    [
        ({"output": [MESSAGE]}, "stop", None),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length", None),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter", None),
        ({"status": "incomplete", "incomplete_details": None}, "length", None),
        (
            {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "m"}},
            "error",
            "rate_limit_exceeded",
        ),
        ({"status": "failed", "error": None}, "error", "server_error"),
        ({"status": "cancelled"}, "error", "cancelled"),
        ({"status": "queued", "output": []}, "error", "background_response"),
        ({"output": None}, "error", "malformed_response"),
        ({"output": None, "error": {"type": "insufficient_quota"}}, "error", "insufficient_quota"),
    ],
)
def test_status_and_error_give_finish_reason_and_error(fields: Raw, finish_reason: str, error: str | None) -> None:
    answer = RESPONSES.answer(WHOLE | fields)
    assert (answer.finish_reason, answer.error) == (finish_reason, error)


def pieces(text: str) -> list[str]:
    return [text[index : index + 3] for index in range(0, len(text), 3)]


def events() -> list[Raw]:
    """The events of `WHOLE`, as the API sends them."""
    begun = WHOLE | {"status": "in_progress", "output": [], "usage": None}
    out: list[Raw] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]

    def add_deltas(kind: str, where: Raw, text: str) -> None:
        out.extend({"type": f"response.{kind}.delta", "delta": piece} | where for piece in pieces(text))

    def item(index: int, empty: Raw) -> Raw:
        out.append({"type": "response.output_item.added", "output_index": index, "item": OUTPUT[index] | empty})
        return {"item_id": OUTPUT[index]["id"], "output_index": index}

    where = item(0, {"summary": []})
    out.append({"type": "response.reasoning_summary_part.added", "summary_index": 0, "part": {}} | where)
    add_deltas("reasoning_summary_text", where | {"summary_index": 0}, "Let me see.")
    out.append({"type": "response.output_item.done", "output_index": 0, "item": REASONING})
    where = item(1, {"content": []})
    add_deltas("output_text", where | {"content_index": 0}, "Günther: 7")
    add_deltas("refusal", where | {"content_index": 1}, "no more")
    out.append({"type": "response.output_item.done", "output_index": 1, "item": MESSAGE})
    add_deltas("function_call_arguments", item(2, {"arguments": ""}), '{"a":1}')
    out.append({"type": "response.output_item.done", "output_index": 2, "item": CALL})
    add_deltas("custom_tool_call_input", item(3, {"input": ""}), "ls")
    out.append({"type": "response.output_item.done", "output_index": 3, "item": CUSTOM})
    return out


END = {"type": "response.completed", "response": WHOLE}


@pytest.mark.parametrize("final", [OUTPUT, [], None])
def test_a_stream_gives_the_whole_answer(final: list[Raw] | None) -> None:
    stream = RESPONSES.stream()
    has_output = [stream.add(event) for event in events()]
    assert not any(has_output[:4])
    assert has_output[4]
    assert not stream.add(END | {"response": WHOLE | {"output": final}})
    assert stream.answer() == RESPONSES.answer(WHOLE)


def test_unfinished_items_are_built_from_their_deltas() -> None:
    stream = RESPONSES.stream()
    for event in events():
        if event["type"] != "response.output_item.done":
            stream.add(event)
    assert stream.answer().message == RESPONSES.answer(WHOLE).message


@given(st.integers(0, len(events())))
def test_a_cut_stream_gives_the_answer_so_far(cut: int) -> None:
    stream = RESPONSES.stream()
    for event in events()[:cut]:
        stream.add(event)
    answer, complete = stream.answer(), RESPONSES.answer(WHOLE)
    assert complete.message["content"].startswith(answer.message["content"])
    assert (complete.message["reasoning"] or "").startswith(answer.message["reasoning"] or "")
    assert (answer.finish_reason, answer.error) == ("", None)
    assert answer.response_id == ("resp_1" if cut else "")


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"type": "error", "code": "server_error", "message": "m", "param": None}, "server_error"),
        ({"type": "error", "error": {"type": "overloaded", "message": "m"}}, "overloaded"),
        ({"error": {"message": "m"}}, "server_error"),
        (
            {
                "type": "response.failed",
                "response": WHOLE | {"status": "failed", "error": {"code": "invalid_prompt", "message": "m"}},
            },
            "invalid_prompt",
        ),
    ],
)
def test_a_failed_stream_keeps_the_answer_so_far(event: Raw, error: str) -> None:
    stream = RESPONSES.stream()
    for one in [*events(), event]:
        stream.add(one)
    answer = stream.answer()
    assert (answer.finish_reason, answer.error) == ("error", error)
    assert answer.message["content"] == "Günther: 7no more"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["type", "output", "id", "code", "content", "text"]), inner, max_size=3)
    ),
    max_leaves=6,
)
KINDS = sorted({event["type"] for event in [*events(), END]} | {"error"})
FIELDS = ["response", "output_index", "item", "delta", "content_index", "summary_index", "error", "type"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(KINDS),
            st.dictionaries(st.sampled_from(FIELDS), ANYTHING),
            st.sampled_from([{}, {"delta": "a"}, {"item": {"type": "message", "content": 1}, "output_index": 0}]),
        ),
        max_size=5,
    )
)
def test_any_events_give_an_answer_or_a_parse_error(events_drawn: list[tuple[str, Raw, Raw]]) -> None:
    stream = RESPONSES.stream()
    with contextlib.suppress(*PARSE_ERRORS):
        for kind, fields, usual in events_drawn:
            stream.add({"type": kind} | fields | usual)
    stream.answer()


def test_nothing_is_added_to_requests_or_removed_from_replies() -> None:
    body = b'{"model": "m",  "include": []}'
    assert RESPONSES.with_additions(body, {"model": "m"}, True) is body
    assert not RESPONSES.strip(dict(WHOLE), RESPONSES.requested_additions({}))
