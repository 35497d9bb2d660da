"""A streamed answer equals the whole one; only additions that the caller did not request are removed."""

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.gateway.protocols.base import RequestedAdditions, error_class
from stepstream.services.gateway.protocols.chat.protocol import ADDITIONS, CHAT, with_worker_fields
from stepstream.services.gateway.protocols.messages import record_message
from stepstream.services.gateway.step_builder import mark_unknown_tools

CALLS = [
    {"id": "c0", "type": "function", "function": {"name": "get", "arguments": '{"input":"a"}'}},
    {"id": "c1", "type": "function", "function": {"name": "calc", "arguments": '{"input":"1+2"}'}},
]


def logprobs(count: int) -> dict[str, Any]:
    return {"content": [{"token": "x", "logprob": -0.5} for _ in range(count)]}


def completion(content: str, ids: list[int], calls: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content} | ({"tool_calls": calls} if calls else {})
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": "tool_calls" if calls else "stop",
        "token_ids": ids,
        "logprobs": logprobs(len(ids)),
        "weight_versions": [{"version": 1, "start": 0, "end": len(ids)}],
    }
    usage = {"prompt_tokens": 1, "completion_tokens": len(ids), "total_tokens": 1 + len(ids)}
    return {"id": "c", "model": "m", "prompt_token_ids": [7], "choices": [choice], "usage": usage}


@given(st.text(max_size=8), st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 2), st.data())
def test_a_stream_gives_the_whole_answer(content: str, ids: list[int], calls: int, data: st.DataObject) -> None:
    reply = completion(content, ids, CALLS[:calls])
    chunks: list[dict[str, Any]] = [
        {"id": "c", "model": "m", "prompt_token_ids": [7], "choices": [{"index": 0, "delta": {"role": "assistant"}}]}
    ]
    deltas: list[dict[str, Any]] = [{"content": character} for character in content]
    for index, call in enumerate(CALLS[:calls]):
        function = call["function"]
        assert isinstance(function, dict)
        deltas.append({"tool_calls": [{"index": index, "id": call["id"], "function": {"name": function["name"]}}]})
        cut = data.draw(st.integers(0, len(function["arguments"])))
        parts = (function["arguments"][:cut], function["arguments"][cut:])
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in parts]
    chunks += [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    for token in ids:
        at = data.draw(st.integers(0, len(chunks)))
        chunks.insert(at, {"choices": [{"index": 0, "delta": {}, "token_ids": [], "logprobs": None}]})
        chunks.append({"choices": [{"index": 0, "delta": {}, "token_ids": [token], "logprobs": logprobs(1)}]})
    first = reply["choices"][0]
    last = {
        "index": 0,
        "delta": {},
        "finish_reason": first["finish_reason"],
        "weight_versions": first["weight_versions"],
    }
    chunks += [{"choices": [last]}, {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": len(ids)}}]
    if data.draw(st.booleans()):  # a second choice with the same content, its chunks between the first's
        reply["choices"].append(first | {"index": 1})
        at = 0
        for chunk in [chunk for chunk in chunks if chunk["choices"]]:
            at = data.draw(st.integers(at, len(chunks)))
            chunks.insert(at, chunk | {"choices": [chunk["choices"][0] | {"index": 1}]})
            at += 1
    gathered = CHAT.stream()
    for chunk in chunks:
        gathered.add(chunk)
    assert gathered.answer() == CHAT.answer(reply)


def test_logprobs_of_a_worker_are_plain_numbers() -> None:
    choice = {"index": 0, "token_ids": [1, 2], "logprobs": {"values": [-0.5, -0.25]}}
    assert CHAT.answer({"choices": [choice]}).logprobs == [-0.5, -0.25]
    gathered = CHAT.stream()
    gathered.add({"choices": [choice]})
    gathered.add({"choices": [choice]})
    assert gathered.answer().logprobs == [-0.5, -0.25] * 2


CUSTOM = {"id": "c0", "type": "custom", "custom": {"name": "run", "input": "1+1"}}
OLD = {"name": "run", "arguments": '{"input":"1+1"}'}


@pytest.mark.parametrize(
    ("fields", "deltas", "call_id"),
    [
        (
            {"tool_calls": [CUSTOM]},
            [
                {"tool_calls": [{"index": 0, "id": "c0", "type": "custom"}]},
                {"tool_calls": [{"index": 0, "custom": {"name": "run", "input": "1+"}}]},
                {"tool_calls": [{"index": 0, "custom": {"input": "1"}}]},
            ],
            "c0",
        ),
        (
            {"function_call": OLD},
            [{"function_call": {"name": "run", "arguments": ""}}, {"function_call": {"arguments": OLD["arguments"]}}],
            "run",
        ),
    ],
    ids=["custom", "function_call"],
)
def test_custom_calls_and_function_call_become_tool_calls(
    fields: dict[str, Any], deltas: list[dict[str, Any]], call_id: str
) -> None:
    message = record_message({"role": "assistant", "content": None, **fields})
    [call] = message["tool_calls"]
    assert (call["call_id"], call["name"], call["arguments"]) == (call_id, "run", '{"input":"1+1"}')
    assert mark_unknown_tools(message, [{"type": "custom", "custom": {"name": "run"}}]) is message
    gathered = CHAT.stream()
    assert all(gathered.add({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas)
    assert gathered.answer().message == message
    result = record_message({"role": "function", "name": "run", "content": "2"})
    assert (result["role"], result["tool_call_id"]) == ("tool", "run")


def test_thinking_parts_of_the_content_are_reasoning() -> None:
    thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": word}]} for word in ("h", "m")]
    answer = [{"type": "text", "text": "so"}]
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, *answer]
    message = record_message({"role": "assistant", "content": parts})
    assert (message["content"], message["reasoning"]) == ("so", "hm")
    gathered = CHAT.stream()
    for content in (*([part] for part in thinking), "", answer):
        gathered.add({"choices": [{"index": 0, "delta": {"content": content}}]})
    assert gathered.answer().message == message


def test_one_chunk_of_tokens_without_logprobs_leaves_the_answer_without() -> None:
    gathered = CHAT.stream()
    gathered.add({"choices": [{"index": 0, "delta": {}, "token_ids": [1], "logprobs": logprobs(1)}]})
    gathered.add({"choices": [{"index": 0, "delta": {}, "token_ids": [2], "logprobs": None}]})
    gathered.add({"choices": [{"index": 0, "delta": {}, "token_ids": [3], "logprobs": logprobs(1)}]})
    assert gathered.answer().logprobs is None


@pytest.mark.parametrize("wanted_logprobs", [True, False])
@pytest.mark.parametrize("wanted_ids", [True, False])
def test_only_additions_that_were_not_requested_are_removed(wanted_logprobs: bool, wanted_ids: bool) -> None:
    body = completion("x", [1], [])
    before = copy.deepcopy(body)
    assert CHAT.strip(body, RequestedAdditions(wanted_logprobs, wanted_ids)) is not (wanted_logprobs and wanted_ids)
    choice, old = body["choices"][0], before["choices"][0]
    assert ("prompt_token_ids" in body, "token_ids" in choice) == (wanted_ids, wanted_ids)
    assert choice["logprobs"] == (old["logprobs"] if wanted_logprobs else None)
    assert choice["message"] == old["message"]
    assert choice["weight_versions"] == old["weight_versions"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"error": {"type": "invalid_request_error"}}, "invalid_request_error"),
        ({"object": "error", "type": "BadRequestError"}, "BadRequestError"),
        ({"error": "no"}, "http_418"),
        (None, "http_418"),
    ],
)
def test_the_class_of_an_error_comes_from_its_body_or_status(body: Any, error: str) -> None:
    assert error_class(body, 418) == error


@pytest.mark.parametrize(
    "body", [{}, {"choices": []}, {"choices": [None]}, {"choices": "x"}, {"choices": [{"message": None}]}]
)
def test_a_malformed_reply_gives_an_answer(body: dict[str, Any]) -> None:
    assert CHAT.answer(body).message["role"] == "assistant"


JSON = st.recursive(st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3), st.lists, max_leaves=4)


@given(
    st.dictionaries(st.text(max_size=4) | st.sampled_from(ADDITIONS), JSON, max_size=4),
    st.sampled_from([b"", b" ", b"\n\n"]),
    st.booleans(),
)
def test_additions_are_requested_and_all_other_fields_are_unchanged(
    request: dict[str, Any], space: bytes, plain: bool
) -> None:
    sent = orjson.loads(CHAT.with_additions(space + orjson.dumps(request) + space, request, plain))
    more = {"plain_logprobs": True} if plain and not request.get("logprobs") else {}
    assert sent == request | {"logprobs": True, "return_token_ids": True} | more


def test_numbers_that_json_parsers_round_are_sent_unchanged() -> None:
    body = b'{"seed": 123456789012345678901234567890, "temperature": 1.10}'
    assert CHAT.with_additions(body, orjson.loads(body), True).startswith(body[:-1])


@pytest.mark.parametrize("spaces", [b"", b" \n"])
def test_workers_get_the_recorded_tokens_and_the_start(spaces: bytes) -> None:
    request = {"model": "m", "messages": [{"role": "user", "content": "}"}]}
    body = orjson.dumps(request) + spaces
    started = {"stepstream_started_at_us": 5}
    assert orjson.loads(with_worker_fields(body, request, 5)) == request | started
    prefix = {"stepstream_prefix": {"token_ids": [1, 2, 3], "messages": 2}}
    assert orjson.loads(with_worker_fields(body, request, 5, (1, 2, 3), 2)) == request | started | prefix
    claimed = request | {"stepstream_prefix": "the caller's"}
    assert (
        orjson.loads(with_worker_fields(orjson.dumps(claimed), claimed, 5, (1, 2, 3), 2)) == request | started | prefix
    )
    assert orjson.loads(with_worker_fields(b"{}", {}, 5)) == started


def test_the_callers_answer_says_nothing_of_the_prefix() -> None:
    told = {"stepstream_prefix": "none", "stepstream_prefix_reason": "text_changed"}
    body = completion("a", [1], []) | told
    answer = CHAT.answer(body)
    assert (answer.prefix, answer.prefix_reason) == ("none", "text_changed")
    assert CHAT.strip(body, RequestedAdditions(logprobs=True, token_ids=True))
    assert body == completion("a", [1], [])
    stream = CHAT.stream()
    stream.add({"choices": []} | told)
    assert (stream.answer().prefix, stream.answer().prefix_reason) == ("none", "text_changed")
