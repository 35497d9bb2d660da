"""A call of the Responses API becomes a chat completion, and the completion a response."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response

from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.protocols.base import History
from stepstream.services.gateway.protocols.chat.protocol import CHAT, raw_messages
from stepstream.services.gateway.protocols.messages import record_message
from stepstream.services.gateway.protocols.responses.protocol import RESPONSES

Raw = dict[str, Any]

TOOL = {"type": "function", "name": "get", "description": "Gets.", "parameters": {"type": "object"}, "strict": True}
CHAT_TOOL = {
    "type": "function",
    "function": {name: TOOL[name] for name in ("name", "description", "parameters", "strict")},
}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}
CUSTOM = {"type": "custom", "name": "run", "description": "Runs.", "format": GRAMMAR}
USER = {"role": "user", "content": "go"}


def chat(request: Raw, history: History | None = None) -> Raw:
    translation = RESPONSES.translation({"model": "m", "input": "go"} | request, history)
    return translation.request


def test_a_minimal_request_is_translated() -> None:
    assert chat({}) == {"model": "m", "messages": [USER]}


def test_parameters_are_translated() -> None:
    schema = {"type": "json_schema", "name": "s", "schema": {"type": "object"}, "strict": True}
    translated = chat(
        {
            "max_output_tokens": 9,
            "temperature": 0.5,
            "user": "u",
            "seed": 3,
            "chat_template_kwargs": {"enable_thinking": False},
            "metadata": {"a": "b"},
            "store": True,
            "truncation": "auto",
            "service_tier": None,
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"format": schema, "verbosity": "low"},
            "stream": True,
            "stream_options": {"include_obfuscation": False},
            "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
            "top_logprobs": 2,
        }
    )
    assert translated == {
        "model": "m",
        "messages": [USER],
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "user": "u",
        "seed": 3,
        "chat_template_kwargs": {"enable_thinking": False},
        "reasoning_effort": "low",
        "verbosity": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": True},
        },
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": 2,
    }
    assert chat({"text": {"format": {"type": "json_object"}}})["response_format"] == {"type": "json_object"}
    assert "response_format" not in chat({"text": {"format": {"type": "text"}}})


def test_a_conversation_with_tools_is_translated() -> None:
    translated = chat(
        {
            "instructions": "Be brief.",
            "input": [
                {"role": "developer", "content": "Use tools."},
                {"role": "user", "content": [{"type": "input_text", "text": "go"}]},
                {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
                {"type": "message", "id": "i", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
                {"type": "function_call", "id": "fc", "call_id": "c0", "name": "get", "arguments": "{}"},
                {"type": "custom_tool_call", "call_id": "c1", "name": "run", "input": "ls"},
                {"type": "function_call_output", "call_id": "c0", "output": "7"},
                {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "8"}]},
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "see"},
                        {"type": "input_image", "image_url": "data:x", "detail": "low"},
                        {"type": "input_file", "file_data": "data:y", "filename": "f"},
                    ],
                },
            ],
        }
    )
    calls = [
        {"id": "c0", "type": "function", "function": {"name": "get", "arguments": "{}"}},
        {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"input":"ls"}'}},
    ]
    assert translated["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Use tools."},
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "ok", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c0", "content": "7"},
        {"role": "tool", "tool_call_id": "c1", "content": "8"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
                {"type": "file", "file": {"file_data": "data:y", "filename": "f"}},
            ],
        },
    ]


def test_the_previous_conversation_follows_the_calls_own_instructions() -> None:
    before = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    translated = chat({"previous_response_id": "resp_0", "instructions": "New."}, History(list(before)))
    assert translated["messages"] == [{"role": "system", "content": "New."}, *before, USER]
    assert "previous_response_id" not in translated


@pytest.mark.parametrize(
    ("choice", "tools", "expected"),
    [
        (None, ["get", "run"], None),
        ("required", ["get", "run"], "required"),
        ({"type": "function", "name": "get"}, ["get", "run"], {"type": "function", "function": {"name": "get"}}),
        ({"type": "custom", "name": "run"}, ["get", "run"], {"type": "function", "function": {"name": "run"}}),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get"}]}, ["get"], "auto"),
    ],
)
def test_tools_and_tool_choice_are_translated(choice: Any, tools: list[str], expected: Any) -> None:
    translated = chat({"tools": [TOOL, CUSTOM], "tool_choice": choice, "parallel_tool_calls": False})
    assert [tool["function"]["name"] for tool in translated["tools"]] == tools
    assert translated["tools"][0] == CHAT_TOOL
    assert translated.get("tool_choice") == expected
    assert translated["parallel_tool_calls"] is False


def test_a_grammar_becomes_part_of_the_description() -> None:
    function = chat({"tools": [CUSTOM]})["tools"][0]["function"]
    assert function["description"] == "Runs.\nThe input must follow this lark grammar:\nstart: WORD"
    assert list(function["parameters"]["properties"]) == ["input"]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "function", "custom", "allowed_tools", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "name", "tools", "format", "mode", "effort", "url"]), inner, max_size=4
        )
    ),
    max_leaves=10,
)
PARAMETERS = [
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "text",
    "reasoning",
    "include",
    "model",
    "stream",
    "user",
]


@given(st.dictionaries(st.sampled_from(PARAMETERS), ANYTHING))
def test_any_request_is_translated_or_refused(request_fields: Raw) -> None:
    with contextlib.suppress(BadRequest):
        RESPONSES.translation(request_fields, None).reply(completion({"content": "hi"}))


def items(*listed: Raw) -> Raw:
    return {"input": list(listed)}


@pytest.mark.parametrize(
    ("request_fields", "error"),
    [
        *[
            ({"tools": [{"type": kind}]}, f"built-in tool '{kind}'")
            for kind in (
                "web_search",
                "file_search",
                "code_interpreter",
                "computer",
                "mcp",
                "namespace",
                "image_generation",
            )
        ],
        ({"tool_choice": {"type": "file_search"}}, "tool_choice of type 'file_search'"),
        ({"background": True}, "'background'"),
        ({"conversation": "conv_1"}, "'conversation'"),
        ({"prompt": {"id": "pmpt"}}, "'prompt'"),
        ({"previous_response_id": "resp_9"}, "'resp_9' is not known here"),
        (items({"type": "item_reference", "id": "msg_9"}), "'msg_9' is not known here"),
        (items({"type": "web_search_call", "id": "ws"}), "'web_search_call'"),
        (items({"type": "computer_call_output", "call_id": "c", "output": {}}), "'computer_call_output'"),
        (items({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}), "'input_image'"),
        (items({"role": "user", "content": [{"type": "input_file", "file_url": "u"}]}), "'input_file'"),
        (
            items(
                {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "file_id": "x"}]}
            ),
            "'input_image'",
        ),
    ],
)
def test_unsupported_features_are_refused_by_name(request_fields: Raw, error: str) -> None:
    with pytest.raises(BadRequest, match=error):
        chat(request_fields)


def test_images_in_results_follow_all_results_in_a_message_of_the_user() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    results = [
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "seen"}, image]},
        {"type": "function_call_output", "call_id": "b", "output": "7"},
    ]
    picture = {"type": "image_url", "image_url": {"url": image["image_url"]}}
    for more, last in (([], []), ([{"role": "user", "content": "and?"}], [{"role": "user", "content": "and?"}])):
        assert chat({"model": "m", "input": [*results, *more]})["messages"] == [
            {"role": "tool", "tool_call_id": "a", "content": "seen"},
            {"role": "tool", "tool_call_id": "b", "content": "7"},
            {"role": "user", "content": [picture]},
            *last,
        ]


def completion(message: Raw, finish_reason: str = "stop", **choice: Any) -> Raw:
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 17,
        "model": "m@3",
        "choices": [{"index": 0, "message": {"role": "assistant"} | message, "finish_reason": finish_reason} | choice],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 9,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
    }


CALLS = [
    {"id": "c0", "type": "function", "function": {"name": "get", "arguments": '{"a": "ü"}'}},
    {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"input": "ls"}'}},
]


def reply(request: Raw, answer: Raw) -> Response:
    translation = RESPONSES.translation({"model": "m", "input": "go"} | request, None, seed="s")
    return Response.model_validate(translation.reply(answer), strict=True)


def test_a_whole_reply_is_translated() -> None:
    request = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "tools": [TOOL, {"type": "function", "name": "bare"}, CUSTOM],
        "text": {"verbosity": "low"},
        "user": "u",
        "max_output_tokens": 99,
        "temperature": 0,
    }
    translated = reply(
        request, completion({"content": "Wörter", "reasoning_content": "hm", "tool_calls": CALLS}, "tool_calls")
    )
    assert translated.id == "resp_s"
    assert (translated.status, translated.error, translated.incomplete_details) == ("completed", None, None)
    assert (translated.model, translated.created_at, translated.instructions, translated.metadata) == (
        "m@3",
        17,
        "Be brief.",
        {"a": "b"},
    )
    assert (translated.temperature, translated.top_p, translated.max_output_tokens, translated.user) == (
        0,
        1.0,
        99,
        "u",
    )
    assert translated.text is not None
    assert translated.text.format is not None
    assert (translated.text.format.type, translated.text.verbosity) == ("text", "low")
    assert translated.output_text == "Wörter"
    kinds = [(item.type, item.id) for item in translated.output]
    assert kinds == [
        ("reasoning", "rs_s_0"),
        ("message", "msg_s_1"),
        ("function_call", "fc_s_2"),
        ("custom_tool_call", "ctc_s_3"),
    ]
    call, custom = translated.output[2:]
    assert call.type == "function_call"
    assert (call.call_id, call.name, call.arguments) == ("c0", "get", '{"a": "ü"}')
    assert custom.type == "custom_tool_call"
    assert (custom.call_id, custom.name, custom.input) == ("c1", "run", "ls")
    assert translated.usage is not None
    assert (translated.usage.input_tokens, translated.usage.output_tokens, translated.usage.total_tokens) == (5, 9, 14)
    assert translated.usage.input_tokens_details.cached_tokens == 2
    assert translated.usage.output_tokens_details.reasoning_tokens == 3


@pytest.mark.parametrize(
    ("finish_reason", "why"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_a_truncated_answer_is_incomplete(finish_reason: str, why: str) -> None:
    translated = reply({}, completion({"content": "Wör"}, finish_reason))
    assert translated.status == "incomplete"
    assert translated.incomplete_details is not None
    assert translated.incomplete_details.reason == why
    assert translated.output[0].type == "message"
    assert translated.output[0].status == "incomplete"


def test_a_refusal_is_a_part_of_the_message() -> None:
    translated = reply({}, completion({"content": None, "refusal": "no"}))
    assert translated.output[0].type == "message"
    assert translated.output[0].content[0].type == "refusal"


def test_logprobs_are_returned_if_requested() -> None:
    entry = {
        "token": "a",
        "logprob": -0.5,
        "bytes": None,
        "top_logprobs": [{"token": "b", "logprob": -1.0, "bytes": [98]}],
    }
    answer = completion({"content": "a"}, logprobs={"content": [entry]})
    for request, expected in (({}, []), ({"include": ["message.output_text.logprobs"]}, [-0.5])):
        message = reply(request, answer).output[0]
        assert message.type == "message"
        assert message.content[0].type == "output_text"
        assert [logprob.logprob for logprob in message.content[0].logprobs or ()] == expected


def test_ids_are_new_for_every_call() -> None:
    first, second = (RESPONSES.translation({"model": "m", "input": "go"}, None) for _ in range(2))
    assert first.response_id != second.response_id
    assert first.reply(completion({"content": "a"}))["id"] == first.response_id


@pytest.mark.parametrize("form", ["whole", "stream"])
def test_items_of_a_reply_can_be_referred_to_by_id(form: str) -> None:
    translation = RESPONSES.translation({"model": "m", "input": "go"}, None)
    if form == "whole":
        translation.reply(completion({"content": "hi", "tool_calls": CALLS[:1]}))
    else:
        translation.feed({"choices": [{"delta": {"content": "hi", "tool_calls": CALLS[:1]}, "finish_reason": "stop"}]})
        translation.end()
    seed = translation.response_id.removeprefix("resp_")
    items = {item["id"]: item for item in translation.items}
    references = [{"type": "item_reference", "id": name} for name in (f"msg_{seed}_0", f"fc_{seed}_1")]
    result = {"type": "function_call_output", "call_id": "c0", "output": "7"}
    messages = chat(RESPONSES.resolve_references({"input": [USER, *references, result]}, items.get))["messages"]
    assert messages[1] == {"role": "assistant", "content": "hi", "tool_calls": CALLS[:1]}


@pytest.mark.parametrize(
    "message",
    [
        {"content": "hi", "reasoning_content": "hm"},
        {"content": None, "refusal": "no"},
        {"content": None, "tool_calls": CALLS[:1]},
        {"content": ""},
    ],
)
def test_an_answer_gives_one_message_however_it_is_repeated(message: Raw) -> None:
    """As recorded, as repeated items, and through `previous_response_id`."""
    recorded = CHAT.answer(completion(message))
    translation = RESPONSES.translation({"model": "m", "input": "go"}, None)
    output = translation.reply(completion(message))["output"]
    history = raw_messages(translation.request, recorded)
    assert record_message(history[-1]) == recorded.message
    if output:
        assert RESPONSES.read({"input": output}).messages == [recorded.message]
        assert chat({"input": [USER, *output]})["messages"] == history
