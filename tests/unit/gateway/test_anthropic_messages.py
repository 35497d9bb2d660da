"""Anthropic's requests and replies in the log's words."""

import contextlib
from typing import Any

import orjson
import pytest
from anthropic_blocks import CONTENTS, events, message, sent_back
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.protocols.anthropic.protocol import ANTHROPIC
from stepstream.services.gateway.protocols.base import Asked, ModelProtocol
from stepstream.services.gateway.streams import READING_FAULTS
from stepstream.topics.events import Message, new_message, new_tool_call

USER = {"role": "user", "content": "hi"}


def read(*turns: Any, **fields: Any) -> list[Message]:
    return ANTHROPIC.read({"model": "m", "messages": list(turns), **fields}).messages


def test_it_is_a_protocol() -> None:
    protocol: ModelProtocol = ANTHROPIC
    assert (protocol.name, protocol.path) == ("anthropic", "/v1/messages")


def test_a_request_is_read() -> None:
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
    assert conversation.sampling == {"temperature": 0.5, "top_p": 0.9, "max_tokens": 64, "seed": None}


def test_what_a_request_leaves_out_has_its_default() -> None:
    conversation = ANTHROPIC.read({"messages": [USER], "system": ""})
    assert conversation.sampling == {"temperature": 1.0, "top_p": 1.0, "max_tokens": None, "seed": None}
    assert (len(conversation.messages), conversation.stream, conversation.user) == (1, False, None)


def test_results_of_tools_come_before_the_rest_of_their_message() -> None:
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


def test_what_is_not_text_is_kept_as_json() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    (told,) = read({"role": "user", "content": [{"type": "text", "text": "see"}, image]})
    assert orjson.loads(told["content"]) == [{"type": "text", "text": "see"}, image]


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
def test_decorations_change_nothing(one: Any, other: Any) -> None:
    assert read({"role": "user", "content": one}) == read({"role": "user", "content": other})


@pytest.mark.parametrize("turn", [7, None, {}, {"role": "user"}, {"role": 3, "content": {"a": 1}}, {"content": [7]}])
def test_what_is_malformed_is_read_all_the_same(turn: Any) -> None:
    assert len(read(turn)) == 1
    ANTHROPIC.read({"messages": turn, "metadata": turn, "temperature": "x", "max_tokens": True})


@given(CONTENTS)
def test_a_reply_equals_itself_in_the_next_request(content: list[dict[str, Any]]) -> None:
    recorded = ANTHROPIC.answer(message(content)).message
    assert read({"role": "assistant", "content": [sent_back(block) for block in content]}) == [recorded]


@given(CONTENTS, st.integers(1, 5))
def test_a_stream_says_what_the_whole_reply_says(content: list[dict[str, Any]], size: int) -> None:
    whole = message(content, stop_reason="tool_use")
    stream = ANTHROPIC.stream()
    for event in events(whole, size):
        stream.add(event)
    assert stream.answer() == ANTHROPIC.answer(whole)


@given(CONTENTS, st.data())
def test_a_cut_stream_gives_what_was_gathered(content: list[dict[str, Any]], data: st.DataObject) -> None:
    sequence = events(message(content), 2)
    stream = ANTHROPIC.stream()
    for event in sequence[: data.draw(st.integers(0, len(sequence) - 2))]:
        stream.add(event)
    answer = stream.answer()
    assert (answer.finish_reason, answer.error) == ("", None)
    whole = ANTHROPIC.answer(message(content)).message
    assert len(answer.message["tool_calls"]) <= len(whole["tool_calls"])


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
def test_whatever_comes_is_read(turns: Any, content: Any, odd: list[dict[str, Any]]) -> None:
    ANTHROPIC.read({"messages": turns, "system": content, "metadata": turns})
    ANTHROPIC.answer(message(content, usage=turns, stop_reason=turns))
    stream = ANTHROPIC.stream()
    for event in odd:
        with contextlib.suppress(*READING_FAULTS):
            stream.add(event)
    stream.answer()


@given(ODD)
def test_whatever_comes_is_translated_or_refused(turns: Any) -> None:
    with contextlib.suppress(BadRequest):
        ANTHROPIC.translation({"model": "m", "messages": turns, "tools": turns, "tool_choice": turns}, None)
    with contextlib.suppress(BadRequest):
        ANTHROPIC.translation({"model": "m", "messages": [{"role": "user", "content": turns}]}, None)


def test_tools_of_the_providers_own_are_calls_with_a_result() -> None:
    content: list[Any] = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s",
            "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
        },
        {"type": "text", "text": "sorry", "citations": [{"type": "char_location"}]},
    ]
    said = ANTHROPIC.answer(message(content)).message
    error = '[{"type":"web_search_tool_result_error","error_code":"max_uses_exceeded"}]'
    assert said["content"] == "sorry"
    assert said["tool_calls"] == [
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
def test_why_it_ended_is_told_in_the_words_of_chat(reason: str | None, word: str) -> None:
    assert ANTHROPIC.answer(message([], stop_reason=reason)).finish_reason == word


def test_what_is_counted_and_named_is_kept() -> None:
    usage = {"input_tokens": 5, "cache_creation_input_tokens": 7, "cache_read_input_tokens": None, "output_tokens": 3}
    answer = ANTHROPIC.answer(message([], usage=usage))
    assert (answer.usage_prompt_tokens, answer.usage_response_tokens) == (12, 3)
    assert (answer.model, answer.response_id) == ("m", "msg_1")
    assert ANTHROPIC.answer(message([], usage=None)).usage_prompt_tokens is None


def test_an_error_in_a_stream_is_the_answers() -> None:
    stream = ANTHROPIC.stream()
    for event in events(message([{"type": "text", "text": "hel"}]), 2)[:4]:
        stream.add(event)
    stream.add({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})
    answer = stream.answer()
    assert (answer.error, answer.finish_reason, answer.message["content"]) == ("overloaded_error", "error", "he")


def test_the_first_word_is_told_of() -> None:
    reply = message([{"type": "text", "text": "a"}, {"type": "tool_use", "id": "1", "name": "get", "input": {}}])
    stream = ANTHROPIC.stream()
    spoke = [event["type"] for event in events(reply, 9) if stream.add(event)]
    assert spoke == ["content_block_delta", "content_block_start", "content_block_delta"]


def test_an_answer_without_content_is_malformed() -> None:
    assert ANTHROPIC.answer({"type": "message"}).error == "malformed_response"
    assert ANTHROPIC.answer({"type": "error", "error": {"type": "api_error"}}).error == "api_error"


def test_bytes_go_through_untouched() -> None:
    body = b'{"model": "m" }'
    assert ANTHROPIC.with_additions(body, {"model": "m"}, True) is body
    asked = ANTHROPIC.asked({"logprobs": True})
    assert asked == Asked(logprobs=False, token_ids=False)
    assert ANTHROPIC.strip(message([]), asked) is False


@pytest.mark.parametrize(
    ("kind", "type_"),
    [("invalid_request_error", "invalid_request_error"), ("backlog_full", "overloaded_error"), ("new", "api_error")],
)
def test_errors_have_anthropics_shape(kind: str, type_: str) -> None:
    body = ANTHROPIC.error_body("why", kind)
    assert orjson.loads(body) == {"type": "error", "error": {"type": type_, "message": "why"}}
    assert ANTHROPIC.error_event("why", kind) == b"event: error\ndata: " + body + b"\n\n"
