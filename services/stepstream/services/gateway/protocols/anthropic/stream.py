"""Reads along with Anthropic's stream: its events spell the content blocks of one message."""

from typing import Any

import orjson

from stepstream.services.gateway.protocols.anthropic.blocks import INVALID_JSON, assistant_message
from stepstream.services.gateway.protocols.base import Answer
from stepstream.services.gateway.protocols.messages import count, text

FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_PROMPT_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_GROWING = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


class StreamedMessage:
    """Gathers the events of one stream. Events and deltas that it does not know say nothing that is recorded."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: dict[Any, dict[str, Any]] = {}
        self._pieces: dict[tuple[Any, str], list[str]] = {}
        self._error: str | None = None

    def add(self, event: dict[str, Any]) -> bool:
        """Takes in the JSON of one event's `data`; True if the model said something in it."""
        kind = event.get("type")  # below, `|` and not `dict`, which would take a list of pairs for an object
        if kind == "content_block_delta":
            return self._grow(event["index"], event["delta"])
        if kind == "content_block_start":
            block = event["content_block"]
            self._blocks[event["index"]] = block | {}
            return "name" in block
        if kind == "message_start":
            self._message = event["message"] | {}
            self._count(self._message.get("usage"))
        elif kind == "message_delta":
            self._message = self._message | event["delta"]
            self._count(event.get("usage"))
        elif kind == "error":
            self._error = error_type(event)
        return False

    def answer(self) -> Answer:
        """What has been said so far."""
        blocks = [self._block(index, block) for index, block in self._blocks.items()]
        answer = answer_of(self._message | {"content": blocks, "usage": self._usage})
        if self._error is not None:
            answer.error, answer.finish_reason = self._error, "error"
        return answer

    def _grow(self, index: Any, delta: dict[str, Any]) -> bool:
        field = _GROWING.get(delta["type"])
        if field is None:
            return False
        piece = text(delta.get(field))
        self._pieces.setdefault((index, field), []).append(piece)
        return bool(piece)

    def _count(self, usage: Any) -> None:
        """Counts are totals, and later ones leave out what has not changed."""
        if isinstance(usage, dict):
            self._usage |= {name: value for name, value in usage.items() if value is not None}

    def _block(self, index: Any, begun: dict[str, Any]) -> dict[str, Any]:
        grown = {name: "".join(pieces) for (at, name), pieces in self._pieces.items() if at == index}
        written = grown.pop("partial_json", "")
        block = begun | {name: text(begun.get(name)) + more for name, more in grown.items()}
        return block | {"input": tool_input(written)} if written else block


def answer_of(reply: dict[str, Any]) -> Answer:
    """The answer in a whole message."""
    content = reply.get("content")
    message = assistant_message(content)
    if reply.get("type") == "error":
        return Answer(message, finish_reason="error", error=error_type(reply))
    if not isinstance(content, list):
        return Answer(message, finish_reason="error", error="malformed_response")
    reason, usage = text(reply.get("stop_reason")), reply.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    prompt = [count(counts.get(name)) for name in _PROMPT_COUNTS]
    return Answer(
        message=message,
        model=text(reply.get("model")),
        finish_reason=FINISH_REASONS.get(reason, reason),
        response_id=text(reply.get("id")),
        usage_prompt_tokens=None if prompt[0] is None else count(sum(number or 0 for number in prompt)),
        usage_response_tokens=count(counts.get("output_tokens")),
    )


def tool_input(arguments: str) -> dict[str, Any]:
    """Arguments as the object that a tool's `input` must be; what is none is kept as text under `INVALID_JSON`."""
    try:
        value = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {INVALID_JSON: arguments}


def error_type(body: dict[str, Any]) -> str:
    """The class of an error in a body or an event."""
    error = body.get("error")
    kind = error.get("type") if isinstance(error, dict) else None
    return kind if isinstance(kind, str) and kind else "error"
