"""Collect the events of Anthropic's stream into an answer; read whole messages. Pure."""

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
_DELTA_FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


class AnthropicStream:
    """Collects the events of one stream; unknown events and deltas are ignored."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: dict[Any, dict[str, Any]] = {}
        self._pieces: dict[tuple[Any, str], list[str]] = {}
        self._error: str | None = None

    def add(self, event: dict[str, Any]) -> bool:
        """Add the JSON of one event's `data`; return True if it contains output of the model."""
        kind = event.get("type")  # `x | {}` below rejects a list of pairs, which `dict(x)` would accept
        if kind == "content_block_delta":
            return self._append(event["index"], event["delta"])
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
        """Return the answer so far."""
        blocks = [self._block(index, block) for index, block in self._blocks.items()]
        answer = answer_of(self._message | {"content": blocks, "usage": self._usage})
        if self._error is not None:
            answer.error, answer.finish_reason = self._error, "error"
        return answer

    def _append(self, index: Any, delta: dict[str, Any]) -> bool:
        field = _DELTA_FIELDS.get(delta["type"])
        if field is None:
            return False
        piece = text(delta.get(field))
        self._pieces.setdefault((index, field), []).append(piece)
        return bool(piece)

    def _count(self, usage: Any) -> None:
        """Update the counts: they are totals, and later events omit unchanged ones."""
        if isinstance(usage, dict):
            self._usage |= {name: value for name, value in usage.items() if value is not None}

    def _block(self, index: Any, start: dict[str, Any]) -> dict[str, Any]:
        texts = {name: "".join(pieces) for (at, name), pieces in self._pieces.items() if at == index}
        arguments = texts.pop("partial_json", "")
        block = start | {name: text(start.get(name)) + more for name, more in texts.items()}
        return block | {"input": tool_input(arguments)} if arguments else block


def answer_of(reply: dict[str, Any]) -> Answer:
    """Return the answer in a whole message."""
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
    """Return arguments as a tool's `input`, which must be an object; other text becomes the value of `INVALID_JSON`."""
    try:
        value = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {INVALID_JSON: arguments}


def error_type(body: dict[str, Any]) -> str:
    """Return the class of an error in a body or an event."""
    error = body.get("error")
    kind = error.get("type") if isinstance(error, dict) else None
    return kind if isinstance(kind, str) and kind else "error"
