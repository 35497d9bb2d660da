"""Messages of OpenAI's chat API as the log keeps them, and how much of a prompt is old."""

from collections.abc import Sequence
from typing import Any

import orjson

from stepstream.topics.events import Message, ToolCall, new_message, new_tool_call


def record_message(raw: Any) -> Message:
    """A message of a request or a response in the log's form; what is malformed is kept as JSON text."""
    if not isinstance(raw, dict):
        return new_message(role="user", content=_json(raw))
    calls = raw.get("tool_calls")
    return new_message(
        role=_text(raw.get("role")) or "user",
        content=content_text(raw.get("content")),
        tool_calls=[_tool_call(call) for call in calls] if isinstance(calls, list) else None,
        tool_call_id=_optional(raw.get("tool_call_id")),
        name=_optional(raw.get("name")),
    )


def content_text(content: Any) -> str:
    """A message's content as text; parts that are not text are kept as JSON."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return "".join(_text(part.get("text")) for part in content)
    return _json(content)


def shared_messages(prompt: Sequence[Message], before: Sequence[Message]) -> int:
    """How many leading messages of `prompt` are exactly those of `before`."""
    for index, (new, old) in enumerate(zip(prompt, before, strict=False)):
        if new != old:
            return index
    return min(len(prompt), len(before))


def _tool_call(raw: Any) -> ToolCall:
    if not isinstance(raw, dict):
        return new_tool_call(call_id="", name="", arguments=_json(raw))
    function = raw.get("function")
    if not isinstance(function, dict):  # a custom tool's call, or none that we know
        return new_tool_call(call_id=_text(raw.get("id")), name=_text(raw.get("type")), arguments=_json(raw))
    return new_tool_call(
        call_id=_text(raw.get("id")), name=_text(function.get("name")), arguments=_text(function.get("arguments"))
    )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else _json(value)


def _optional(value: Any) -> str | None:
    return None if value is None else _text(value)


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
