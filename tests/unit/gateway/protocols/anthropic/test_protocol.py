"""Anthropic's requests and replies become messages and answers of the log."""

import contextlib
from typing import Any

import orjson
import pytest
from anthropic_blocks import CONTENTS, as_resent, events, message
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.protocols.anthropic.protocol import ANTHROPIC
from stepstream.services.gateway.protocols.base import ModelProtocol, RequestedAdditions
from stepstream.services.gateway.streams import PARSE_ERRORS
from stepstream.topics.events import Message, new_message, new_sampling, new_tool_call

USER = {"role": "user", "content": "hi"}


def read(*turns: Any, **fields: Any) -> list[Message]:
    return ANTHROPIC.read({"model": "m", "messages": list(turns), **fields}).messages


def test_it_implements_the_protocol_interface() -> None:
    protocol: ModelProtocol = ANTHROPIC
    assert (protocol.name, protocol.path) == ("anthropic", "/v1/messages")


def test_a_request_becomes_a_conversation() -> None:
    conversation = ANTHROPIC.read(
        {
            "model": "m",
            "max_tokens": 64,
            "temperature": 0.5,
            "top_p": 0.9,
            "stream": True,
            "system": [
                {"type": "text", "text": "be ", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "kind"},
            ],
            "metadata": {"user_id": "someone"},
            "messages": [USER],
        }
    )
    assert conversation.messages == [
        new_message(role="system", content="be kind"),
        new_message(role="user", content="hi"),
    ]
    assert (conversation.model, conversation.stream, conversation.user) == ("m", True, "someone")
    assert conversation.sampling == new_sampling(temperature=0.5, top_p=0.9, max_tokens=64)


def test_missing_fields_have_defaults() -> None:
    conversation = ANTHROPIC.read({"messages": [USER], "system": ""})
    assert conversation.sampling == new_sampling()
    assert (len(conversation.messages), conversation.stream, conversation.user) == (1, False, None)


def test_tool_results_precede_the_rest_of_their_message() -> None:
    messages = read(
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "go on"},
                {"type": "tool_result", "tool_use_id": "a", "content": "4"},
                {
                    "type": "tool_result",
                    "tool_use_id": "b",
                    "content": [{"type": "text", "text": "no"}],
                    "is_error": True,
                },
            ],
        }
    )
    assert messages == [
        new_message(role="tool", content="4", tool_call_id="a"),
        new_message(role="tool", content="Error: no", tool_call_id="b"),
        new_message(role="user", content="go on"),
    ]
    alone = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}
    assert read(alone) == [new_message(role="tool", tool_call_id="a")]


def test_content_that_is_not_text_becomes_json() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    (read_message,) = read({"role": "user", "content": [{"type": "text", "text": "see"}, image]})
    assert orjson.loads(read_message["content"]) == [{"type": "text", "text": "see"}, image]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("hi", [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]),
        (
            [{"type": "image", "source": {"type": "url", "url": "u"}}],
            [{"type": "image", "source": {"type": "url", "url": "u"}, "cache_control": {"type": "ephemeral"}}],
        ),
        (
            [{"type": "tool_result", "tool_use_id": "a", "content": "4"}],
            [
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "content": [{"type": "text", "text": "4", "cache_control": {}}],
                    "cache_control": {},
                    "is_error": False,
                }
            ],
        ),
    ],
)
def test_decorations_do_not_change_a_message(one: Any, other: Any) -> None:
    assert read({"role": "user", "content": one}) == read({"role": "user", "content": other})


@pytest.mark.parametrize("turn", [7, None, {}, {"role": "user"}, {"role": 3, "content": {"a": 1}}, {"content": [7]}])
def test_malformed_turns_are_read(turn: Any) -> None:
    assert len(read(turn)) == 1
    ANTHROPIC.read({"messages": turn, "metadata": turn, "temperature": "x", "max_tokens": True})


@given(CONTENTS)
def test_a_reply_equals_its_repetition_in_the_next_request(content: list[dict[str, Any]]) -> None:
    recorded = ANTHROPIC.answer(message(content)).message
    assert read({"role": "assistant", "content": [as_resent(block) for block in content]}) == [recorded]


@given(CONTENTS, st.integers(1, 5))
def test_a_stream_gives_the_answer_of_the_whole_reply(content: list[dict[str, Any]], size: int) -> None:
    reply = message(content, stop_reason="tool_use")
    stream = ANTHROPIC.stream()
    for event in events(reply, size):
        stream.add(event)
    assert stream.answer() == ANTHROPIC.answer(reply)


@given(CONTENTS, st.data())
def test_a_cut_stream_gives_the_answer_so_far(content: list[dict[str, Any]], data: st.DataObject) -> None:
    sequence = events(message(content), 2)
    stream = ANTHROPIC.stream()
    for event in sequence[: data.draw(st.integers(0, len(sequence) - 2))]:
        stream.add(event)
    answer = stream.answer()
    assert (answer.finish_reason, answer.error) == ("", None)
    complete = ANTHROPIC.answer(message(content)).message
    assert len(answer.message["tool_calls"]) <= len(complete["tool_calls"])


KEYS = ["type", "role", "content", "text", "id", "name", "input", "tool_use_id", "thinking", "is_error", "source"]
KINDS = ["text", "tool_use", "tool_result", "thinking", "redacted_thinking", "text_delta", "input_json_delta", "image"]
ODD = st.recursive(
    st.none() | st.integers(0, 2) | st.sampled_from([*KINDS, "", "assistant", "user"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
STREAMED = ["message_start", "content_block_start", "content_block_delta", "message_delta", "error"]
ODD_EVENTS = st.fixed_dictionaries(
    {"type": st.sampled_from(STREAMED)},
    optional=dict.fromkeys(("message", "index", "content_block", "delta", "usage", "error"), ODD),
)


@given(ODD, ODD, st.lists(ODD_EVENTS, max_size=5))
def test_any_input_is_read(turns: Any, content: Any, odd: list[dict[str, Any]]) -> None:
    ANTHROPIC.read({"messages": turns, "system": content, "metadata": turns})
    ANTHROPIC.answer(message(content, usage=turns, stop_reason=turns))
    stream = ANTHROPIC.stream()
    for event in odd:
        with contextlib.suppress(*PARSE_ERRORS):
            stream.add(event)
    stream.answer()


@given(ODD)
def test_any_request_is_translated_or_refused(turns: Any) -> None:
    with contextlib.suppress(BadRequest):
        ANTHROPIC.translation({"model": "m", "messages": turns, "tools": turns, "tool_choice": turns}, None)
    with contextlib.suppress(BadRequest):
        ANTHROPIC.translation({"model": "m", "messages": [{"role": "user", "content": turns}]}, None)


def test_provider_run_tools_become_calls_with_a_result() -> None:
    content: list[Any] = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s",
            "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
        },
        {"type": "text", "text": "sorry", "citations": [{"type": "char_location"}]},
    ]
    answer = ANTHROPIC.answer(message(content)).message
    error = '[{"type":"web_search_tool_result_error","error_code":"max_uses_exceeded"}]'
    assert answer["content"] == "sorry"
    assert answer["tool_calls"] == [
        new_tool_call(
            call_id="s", name="web_search", arguments='{"query":"x"}', result=error, error="max_uses_exceeded"
        )
    ]


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
        ("something_new", "something_new"),
        (None, ""),
    ],
)
def test_stop_reasons_become_finish_reasons(reason: str | None, word: str) -> None:
    assert ANTHROPIC.answer(message([], stop_reason=reason)).finish_reason == word


def test_usage_model_and_id_are_read() -> None:
    usage = {"input_tokens": 5, "cache_creation_input_tokens": 7, "cache_read_input_tokens": None, "output_tokens": 3}
    answer = ANTHROPIC.answer(message([], usage=usage))
    assert (answer.usage_prompt_tokens, answer.usage_response_tokens) == (12, 3)
    assert (answer.model, answer.response_id) == ("m", "msg_1")
    assert ANTHROPIC.answer(message([], usage=None)).usage_prompt_tokens is None


def test_an_error_in_a_stream_is_the_error_of_the_answer() -> None:
    stream = ANTHROPIC.stream()
    for event in events(message([{"type": "text", "text": "hel"}]), 2)[:4]:
        stream.add(event)
    stream.add({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})
    answer = stream.answer()
    assert (answer.error, answer.finish_reason, answer.message["content"]) == ("overloaded_error", "error", "he")


def test_events_with_output_are_reported() -> None:
    reply = message([{"type": "text", "text": "a"}, {"type": "tool_use", "id": "1", "name": "get", "input": {}}])
    stream = ANTHROPIC.stream()
    with_output = [event["type"] for event in events(reply, 9) if stream.add(event)]
    assert with_output == ["content_block_delta", "content_block_start", "content_block_delta"]


def test_an_answer_without_content_is_malformed() -> None:
    assert ANTHROPIC.answer({"type": "message"}).error == "malformed_response"
    assert ANTHROPIC.answer({"type": "error", "error": {"type": "api_error"}}).error == "api_error"


def test_nothing_is_added_to_requests_or_removed_from_replies() -> None:
    body = b'{"model": "m" }'
    assert ANTHROPIC.with_additions(body, {"model": "m"}, True) is body
    requested = ANTHROPIC.requested_additions({"logprobs": True})
    assert requested == RequestedAdditions(logprobs=False, token_ids=False)
    assert ANTHROPIC.strip(message([]), requested) is False


@pytest.mark.parametrize(
    ("kind", "type_"),
    [("invalid_request_error", "invalid_request_error"), ("backlog_full", "overloaded_error"), ("new", "api_error")],
)
def test_errors_have_anthropics_form(kind: str, type_: str) -> None:
    body = ANTHROPIC.error_body("why", kind)
    assert orjson.loads(body) == {"type": "error", "error": {"type": type_, "message": "why"}}
    assert ANTHROPIC.error_event("why", kind) == b"event: error\ndata: " + body + b"\n\n"
