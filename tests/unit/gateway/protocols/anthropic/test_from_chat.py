"""A chat completion's reply becomes the same message of Anthropic's, whole or streamed."""

import copy
import json
from typing import Any

import orjson
import pytest
from anthropic_blocks import OBJECTS, TEXTS, pieces
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.gateway.context.tree import prefix_hash
from stepstream.services.gateway.http.sse import EventParser
from stepstream.services.gateway.protocols.anthropic.from_chat import AnthropicTranslation
from stepstream.services.gateway.protocols.anthropic.protocol import ANTHROPIC
from stepstream.services.gateway.protocols.anthropic.stream import tool_input
from stepstream.services.gateway.protocols.chat.protocol import CHAT

REQUEST: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "stop_sequences": ["END"],
}
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}}
ARGUMENTS = OBJECTS.map(json.dumps) | st.sampled_from(["", "{", "[1]", '{"a": 1', "7"])
CALLS = st.lists(st.tuples(TEXTS.filter(bool), ARGUMENTS), max_size=3)


def translation(**fields: Any) -> AnthropicTranslation:
    return ANTHROPIC.translation(REQUEST | fields, None)


def call(index: int, name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}


def completion(message: dict[str, Any], reason: str = "stop", **choice: Any) -> dict[str, Any]:
    first = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason, **choice}
    return {"id": "c", "object": "chat.completion", "model": "m", "choices": [first], "usage": USAGE}


def chunks(answer: dict[str, Any], size: int, *, mixed: bool = False) -> list[dict[str, Any]]:
    """The stream of a completion in pieces of `size` characters; `mixed`: its calls take turns."""
    choice = answer["choices"][0]
    message = choice["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning_content", "content"):
        deltas += [{name: piece} for piece in pieces(message.get(name) or "", size)]
    turns = []
    for index, each in enumerate(message.get("tool_calls") or ()):
        parts = [each | {"index": index, "function": each["function"] | {"arguments": ""}}]
        cut = pieces(each["function"]["arguments"], size)
        parts += [{"index": index, "function": {"arguments": piece}} for piece in cut]
        turns += [(position if mixed else 0, index, position, part) for position, part in enumerate(parts)]
    deltas += [{"tool_calls": [part]} for *_, part in sorted(turns, key=lambda turn: turn[:3])]
    head = {"id": "c", "object": "chat.completion.chunk", "model": "m"}
    out = [head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    last = choice | {"delta": {}}
    del last["message"]
    return [*out, head | {"choices": [last]}, head | {"choices": [], "usage": answer["usage"]}]


def parse_events(raw: bytes) -> list[dict[str, Any]]:
    """Return the data of events, each named by its type."""
    out = []
    for event in EventParser().feed(raw):
        data = orjson.loads(event.data or b"")
        assert event.raw.startswith(b"event: %b\ndata: " % data["type"].encode())
        if data["type"] != "ping":
            out.append(data)
    return out


def gather(sequence: list[dict[str, Any]]) -> dict[str, Any]:
    """Build the message as a client does; check that one block at a time is open, in order."""
    assert [sequence[0]["type"], sequence[-2]["type"], sequence[-1]["type"]] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    message: dict[str, Any] = copy.deepcopy(sequence[0]["message"])
    written = ""
    opened = None
    for event in sequence[1:-2]:
        if event["type"] == "content_block_start":
            assert opened is None
            assert event["index"] == len(message["content"])
            opened, written = copy.deepcopy(event["content_block"]), ""
            message["content"].append(opened)
            continue
        assert opened is not None
        assert event["index"] == len(message["content"]) - 1
        if event["type"] == "content_block_stop":
            if written:
                opened["input"] = tool_input(written)
            opened = None
            continue
        delta = event["delta"]
        if delta["type"] == "input_json_delta":
            written += delta["partial_json"]
        else:
            opened[opened["type"]] += delta[opened["type"]]
    assert opened is None
    return message | sequence[-2]["delta"] | {"usage": sequence[-2]["usage"]}


def stream(translated: AnthropicTranslation, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return parse_events(b"".join([translated.feed(part) for part in parts]) + translated.end())


def test_an_answer_is_translated() -> None:
    message = {"content": "hello", "reasoning_content": "hm", "tool_calls": [call(0, "get", '{"key": "a"}')]}
    assert translation().reply(completion(message, "tool_calls")) == {
        "id": "c",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "hello"},
            {"type": "tool_use", "id": "call_0", "name": "get", "input": {"key": "a"}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 3,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 6,
            "output_tokens": 4,
        },
    }


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (completion({"content": "a"}), "end_turn"),
        (completion({"content": "a"}, "length"), "max_tokens"),
        (completion({"content": "a"}, "content_filter"), "refusal"),
        (completion({"content": None, "tool_calls": [call(0, "get", "{}")]}), "tool_use"),
        (completion({"content": None, "tool_calls": [call(0, "get", '{"a')]}, "length"), "max_tokens"),
        (completion({"content": "a"}, stop_reason="END"), "stop_sequence"),
        (completion({"content": "a"}, stop_reason="other"), "end_turn"),
        (completion({"content": "a"}, stop_reason=151645), "end_turn"),
    ],
)
def test_finish_reasons_become_stop_reasons(answer: dict[str, Any], reason: str) -> None:
    reply = translation().reply(answer)
    assert (reply["stop_reason"], reply["stop_sequence"]) == (reason, "END" if reason == "stop_sequence" else None)


def test_reasoning_is_returned_only_if_thinking_is_enabled() -> None:
    message = {"content": "a", "reasoning_content": "hm"}
    for thinking in (None, {"type": "disabled"}):
        reply = translation(thinking=thinking).reply(completion(message))
        assert reply["content"] == [{"type": "text", "text": "a"}]
        streamed = gather(stream(translation(thinking=thinking), chunks(completion(message), 1)))
        assert streamed["content"] == reply["content"]


def test_arguments_that_are_no_object_return_unchanged() -> None:
    answer = completion({"content": None, "tool_calls": [call(0, "get", "{key: a}")]}, "tool_calls")
    reply = translation().reply(answer)
    assert reply["content"][0]["input"] == {"INVALID_JSON": "{key: a}"}
    (back,) = ANTHROPIC.read({"messages": [{"role": "assistant", "content": reply["content"]}]}).messages
    assert back == CHAT.answer(answer).message


@given(TEXTS, TEXTS, CALLS, st.integers(1, 6), st.booleans())
def test_a_stream_gives_the_whole_reply(
    reasoning: str, content: str, calls: list[tuple[str, str]], size: int, mixed: bool
) -> None:
    tool_calls = [call(index, name, arguments) for index, (name, arguments) in enumerate(calls)]
    answer = completion({"content": content, "reasoning_content": reasoning, "tool_calls": tool_calls})
    sequence = stream(translation(), chunks(answer, size, mixed=mixed))
    reply = translation().reply(answer)
    assert gather(sequence) == reply
    along = ANTHROPIC.stream()
    for event in sequence:
        along.add(event)
    assert along.answer() == ANTHROPIC.answer(reply)


@given(TEXTS, TEXTS, st.lists(st.tuples(TEXTS, OBJECTS.map(json.dumps)), max_size=3))
def test_a_translated_answer_is_recognised_in_the_next_request(
    reasoning: str, content: str, calls: list[tuple[str, str]]
) -> None:
    tool_calls = [call(index, name, arguments) for index, (name, arguments) in enumerate(calls)]
    answer = completion({"content": content, "reasoning_content": reasoning, "tool_calls": tool_calls})
    reply = json.loads(json.dumps(translation().reply(answer)))
    turns = [*REQUEST["messages"], {"role": "assistant", "content": reply["content"]}, {"role": "user", "content": ""}]
    back = CHAT.read(translation(messages=turns).request).messages[1]
    assert prefix_hash(b"", back) == prefix_hash(b"", CHAT.answer(answer).message)
    native = ANTHROPIC.read({"messages": turns}).messages[1]
    assert native == ANTHROPIC.answer(reply).message


def test_text_is_sent_immediately() -> None:
    translated = translation()
    parts = chunks(completion({"content": "hello"}), 1)
    sent = [parse_events(translated.feed(part)) for part in parts]
    assert [event["type"] for event in sent[0]] == ["message_start"]
    assert [event["type"] for event in sent[1]] == ["content_block_start", "content_block_delta"]
    assert [[event["delta"]["text"] for event in each] for each in sent[2:6]] == [["e"], ["l"], ["l"], ["o"]]


def test_a_call_begins_before_its_arguments_are_complete() -> None:
    translated = translation()
    parts = chunks(completion({"content": None, "tool_calls": [call(0, "get", '{"key": 1}')]}), 2)
    sent = [parse_events(translated.feed(part)) for part in parts]
    assert [event["type"] for event in sent[2]] == ["content_block_start", "content_block_delta"]
    assert sent[2][0]["content_block"] == {"type": "tool_use", "id": "call_0", "name": "get", "input": {}}


def test_arguments_are_sent_as_they_come() -> None:
    translated = translation()
    arguments = '{"path": "a", "text": "bcd"}'
    parts = chunks(completion({"content": None, "tool_calls": [call(0, "write", arguments)]}), 4)
    sent = [event for part in parts for event in parse_events(translated.feed(part))]
    pieces = [event["delta"]["partial_json"] for event in sent if event["type"] == "content_block_delta"]
    assert pieces == [arguments[at : at + 4] for at in range(0, len(arguments), 4)]


def test_arguments_that_begin_no_object_wait_for_their_end() -> None:
    translated = translation()
    parts = chunks(completion({"content": None, "tool_calls": [call(0, "get", "[1, 2, 3]")]}), 2)
    sent = parse_events(b"".join([translated.feed(part) for part in parts]))
    assert not [event for event in sent if event["type"] == "content_block_delta"]
    assert gather(sent + parse_events(translated.end()))["content"][0]["input"] == {"INVALID_JSON": "[1, 2, 3]"}


def test_pings_keep_a_stream_open() -> None:
    translated = translation()
    assert translated.keep_alive(b": keep-alive\n\n") == b": keep-alive\n\n"  # a message begins with its start
    first = translated.feed(chunks(completion({"content": "a"}), 1)[0])
    assert first.endswith(b'\n\nevent: ping\ndata: {"type":"ping"}\n\n')
    assert translated.keep_alive(b": keep-alive\n\n") == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_text_after_a_call_comes_last() -> None:
    parts = chunks(completion({"content": None, "tool_calls": [call(0, "get", "{}")]}), 9)
    parts.insert(-2, parts[0] | {"choices": [{"index": 0, "delta": {"content": "bye"}}]})
    content = gather(stream(translation(), parts))["content"]
    assert [block["type"] for block in content] == ["tool_use", "text"]


@pytest.mark.parametrize("error", ["the upstream went away", None])
def test_a_broken_stream_ends_with_an_error(error: str | None) -> None:
    translated = translation()
    for part in chunks(completion({"content": "hello"}), 1)[:3]:
        translated.feed(part)
    (event,) = parse_events(translated.end(error))
    assert (event["type"], event["error"]["type"]) == ("error", "api_error")
    assert event["error"]["message"] == (error or "the upstream's answer ended before it was complete")
    assert translated.end() == b""


def test_an_upstreams_error_in_a_stream_is_sent_once() -> None:
    translated = translation()
    (event,) = parse_events(translated.feed({"error": {"message": "out of memory", "type": "server_error"}}))
    assert event["error"] == {"type": "api_error", "message": "out of memory"}
    assert translated.feed(chunks(completion({"content": "a"}), 1)[0]) == b""
    assert translated.end("broke") == b""


def test_only_the_first_choice_is_returned() -> None:
    parts = chunks(completion({"content": "a"}), 1)
    parts.insert(1, parts[1] | {"choices": [{"index": 1, "delta": {"content": "other"}}]})
    assert gather(stream(translation(), parts))["content"] == [{"type": "text", "text": "a"}]


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{}]}])
def test_a_reply_without_a_message_cannot_be_read(answer: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="without a message"):
        translation().reply(answer)
