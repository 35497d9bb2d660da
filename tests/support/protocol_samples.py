"""Requests, replies and streams of the gateway's protocols, with each field that it reads."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson
from order_model import completion, completion_events, response, response_events

from stepstream.services.gateway.protocols.anthropic.protocol import ANTHROPIC
from stepstream.services.gateway.protocols.base import ModelProtocol
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.services.gateway.protocols.responses.protocol import RESPONSES


@dataclass(frozen=True)
class Sample:
    """One call: its request, its reply, and the same reply as a stream of events."""

    protocol: ModelProtocol
    request: dict[str, Any]
    reply: dict[str, Any]
    events: list[Any]


def events_in(texts: Iterable[str]) -> list[Any]:
    """Return the JSON of the events in the text of a stream."""
    lines = [line for text in texts for line in text.splitlines()]
    return [orjson.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


CHAT_REQUEST: dict[str, Any] = {
    "model": "demo",
    "messages": [
        {"role": "system", "content": "Help."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": "u"}}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"order": 1}'}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "sent"},
        {"role": "user", "content": "and 4712?"},
    ],
    "tools": [{"type": "function", "function": {"name": "get", "description": "d", "parameters": {"type": "object"}}}],
    "temperature": 0.5, "max_tokens": 9, "n": 2, "stop": ["x"], "seed": 3, "logprobs": True, "stream": False,
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}}, "tool_choice": "auto",
}  # fmt: skip
CHAT_REPLY = completion({**CHAT_REQUEST, "messages": []})
CHAT_EVENTS = events_in(completion_events(CHAT_REPLY))
RESPONSES_REQUEST: dict[str, Any] = {
    "model": "demo", "instructions": "Help.", "stream": False, "max_output_tokens": 9, "temperature": 0.5,
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "s"}]},
        {"type": "function_call", "call_id": "c1", "name": "get", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sent"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
    ],
    "tools": [{"type": "function", "name": "get", "parameters": {}, "strict": False}],
    "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}, "tool_choice": "auto",
}  # fmt: skip
RESPONSES_REPLY = response({**RESPONSES_REQUEST, "input": []})
ANTHROPIC_REQUEST: dict[str, Any] = {
    "model": "demo", "max_tokens": 9, "system": [{"type": "text", "text": "Help."}], "temperature": 0.5,
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image", "source": {"type": "base64"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "tool_use", "id": "t1", "name": "get", "input": {"order": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sent"}]},
    ],
    "tools": [{"name": "get", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"}, "stop_sequences": ["x"], "metadata": {"user_id": "u"},
}  # fmt: skip
ANTHROPIC_REPLY: dict[str, Any] = {
    "id": "m1", "type": "message", "role": "assistant", "model": "demo", "stop_reason": "tool_use",
    "content": [{"type": "text", "text": "ok"}, {"type": "tool_use", "id": "t1", "name": "get", "input": {}}],
    "usage": {"input_tokens": 1, "output_tokens": 2},
}  # fmt: skip
ANTHROPIC_EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**ANTHROPIC_REPLY, "content": []}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "get"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a'}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
]
SAMPLES = {
    "chat": Sample(CHAT, CHAT_REQUEST, CHAT_REPLY, CHAT_EVENTS),
    "responses": Sample(RESPONSES, RESPONSES_REQUEST, RESPONSES_REPLY, events_in(response_events(RESPONSES_REPLY))),
    "anthropic": Sample(ANTHROPIC, ANTHROPIC_REQUEST, ANTHROPIC_REPLY, ANTHROPIC_EVENTS),
}
