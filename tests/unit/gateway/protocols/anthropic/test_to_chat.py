"""Anthropic's requests become chat completions, or are refused with the reason."""

from typing import Any

import pytest
from anthropic_blocks import CONTENTS, message
from hypothesis import given

from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.protocols.anthropic.protocol import ANTHROPIC
from stepstream.services.gateway.protocols.chat.protocol import CHAT

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"key": {"type": "string"}}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def chat(*turns: Any, **fields: Any) -> dict[str, Any]:
    return ANTHROPIC.translation({"model": "m", "messages": list(turns or (USER,)), **fields}, None).request


def user_messages(content: Any) -> list[dict[str, Any]]:
    """Return the chat messages of one user message."""
    messages: list[dict[str, Any]] = chat({"role": "user", "content": content})["messages"]
    return messages


def test_a_request_is_translated() -> None:
    translated = chat(
        max_tokens=64,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        system="be kind",
        stop_sequences=["END"],
        metadata={"user_id": "someone"},
        tools=[
            {
                "name": "get",
                "description": "looks up",
                "input_schema": SCHEMA,
                "strict": True,
                "cache_control": {"type": "ephemeral"},
            }
        ],
        thinking={"type": "enabled", "budget_tokens": 1024},
        service_tier="auto",
    )
    function = {"name": "get", "parameters": SCHEMA, "description": "looks up", "strict": True}
    assert translated == {
        "model": "m",
        "max_tokens": 64,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "messages": [{"role": "system", "content": "be kind"}, USER],
        "tools": [{"type": "function", "function": function}],
        "stop": ["END"],
        "user": "someone",
    }


def test_missing_and_empty_fields_are_not_sent() -> None:
    assert chat(stop_sequences=[], tools=[], system=[], metadata={}) == {"model": "m", "messages": [USER]}


def test_usage_is_requested_of_a_stream() -> None:
    streamed = chat(stream=True)
    assert (streamed["stream"], streamed["stream_options"]) == (True, {"include_usage": True})


def test_a_conversation_with_tools_is_translated() -> None:
    first = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "looking"},
            {"type": "tool_use", "id": "a", "name": "get", "input": {"key": "é"}},
            {"type": "tool_use", "id": "b", "name": "get", "input": {}},
        ],
    }
    results = {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "4"}, IMAGE]},
            {"type": "tool_result", "tool_use_id": "b", "content": "none", "is_error": True},
            {"type": "text", "text": "go on"},
        ],
    }
    calls = [
        {"id": "a", "type": "function", "function": {"name": "get", "arguments": '{"key":"é"}'}},
        {"id": "b", "type": "function", "function": {"name": "get", "arguments": "{}"}},
    ]
    assert chat(USER, first, results)["messages"] == [
        USER,
        {"role": "assistant", "content": "looking", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "4"},
        {"role": "tool", "tool_call_id": "b", "content": "Error: none"},
        {"role": "user", "content": [PICTURE, {"type": "text", "text": "go on"}]},
    ]


def test_tool_results_alone_make_no_user_message() -> None:
    assert [turn["role"] for turn in user_messages([{"type": "tool_result", "tool_use_id": "a", "content": "4"}])] == [
        "tool"
    ]


@pytest.mark.parametrize(
    ("content", "translated"),
    [
        ([{"type": "text", "text": "hi"}], "hi"),
        ([IMAGE], [PICTURE]),
        (
            [{"type": "image", "source": {"type": "url", "url": "https://a/b"}}],
            [{"type": "image_url", "image_url": {"url": "https://a/b"}}],
        ),
        (
            [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a document"}}],
            "a document",
        ),
        (
            [
                {
                    "type": "document",
                    "title": "a.pdf",
                    "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="},
                }
            ],
            [{"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}}],
        ),
    ],
)
def test_blocks_become_content_parts(content: Any, translated: Any) -> None:
    assert user_messages(content) == [{"role": "user", "content": translated}]


@pytest.mark.parametrize(
    ("choice", "translated"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "get"}, {"tool_choice": {"type": "function", "function": {"name": "get"}}}),
        ({"type": "auto", "disable_parallel_tool_use": True}, {"tool_choice": "auto", "parallel_tool_calls": False}),
    ],
)
def test_tool_choice_is_translated(choice: dict[str, Any], translated: dict[str, Any]) -> None:
    assert chat(tool_choice=choice) == {"model": "m", "messages": [USER], **translated}


def test_a_response_schema_is_translated() -> None:
    wanted = {"type": "json_schema", "schema": SCHEMA}
    translated = {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA, "strict": True}}
    assert chat(output_config={"format": wanted})["response_format"] == translated
    assert chat(output_format=wanted)["response_format"] == translated


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}, "code_execution_20250825"),
        ({"tools": [{"type": "computer_20250124", "name": "computer"}]}, "computer_20250124"),
        ({"mcp_servers": [{"type": "url", "url": "u", "name": "n"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"messages": [USER, {"role": "assistant", "content": "{"}]}, "prefill"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]}, "'file'"),
        ({"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}, USER]}, "server_tool_use"),
    ],
)
def test_unsupported_features_are_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequest, match=rf"{named}.*(?s:.*)an upstream that speaks Anthropic's Messages"):
        ANTHROPIC.translation({"model": "m", "messages": [USER], **fields}, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": "hi"},
        {"messages": []},
        {"messages": [7]},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": [7]}]},
        {"tools": {}},
        {"tools": ["get"]},
        {"tool_choice": {"type": "some"}},
        {"output_config": {"format": {"type": "xml"}}},
        {"stop_sequences": "END"},
    ],
)
def test_malformed_requests_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        ANTHROPIC.translation({"model": "m", "messages": [USER], **fields}, None)


@given(CONTENTS.map(lambda blocks: [block for block in blocks if block["type"] in ("text", "tool_use", "thinking")]))
def test_a_translated_conversation_is_recorded_like_a_native_one(content: list[dict[str, Any]]) -> None:
    request = {"model": "m", "system": "s", "messages": [USER, {"role": "assistant", "content": content}, USER]}
    translated = CHAT.read(ANTHROPIC.translation(request, None).request).messages
    own = ANTHROPIC.read(request).messages
    assert translated == own
    assert ANTHROPIC.answer(message(content)).message["tool_calls"] == own[2]["tool_calls"]
