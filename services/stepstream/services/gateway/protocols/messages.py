"""Convert OpenAI's chat messages to the log's form, with helpers that all protocols use. Pure."""

from typing import Any

import orjson

from stepstream.topics.events import Message, ToolCall, new_message, new_tool_call


def record_message(raw: Any) -> Message:
    """Convert a message of a request or response; malformed parts become JSON text."""
    if not isinstance(raw, dict):
        return new_message(role="user", content=json_text(raw))
    role, call_id, raw_calls = text(raw.get("role")) or "user", raw.get("tool_call_id"), raw.get("tool_calls")
    calls = [_tool_call(call) for call in raw_calls] if isinstance(raw_calls, list) else None
    if calls is None and raw.get("function_call") is not None:
        calls = [_function_call(raw["function_call"])]
    if role == "function":
        role, call_id = "tool", raw.get("name")
    # Servers put reasoning into `reasoning_content` (vLLM, DeepSeek), `reasoning` (OpenRouter, newer vLLM), or the
    # content (Mistral).
    reasoning, content = raw.get("reasoning_content"), raw.get("content")
    if isinstance(content, list):
        content, thinking = split_thinking(content)
        reasoning = thinking or reasoning
    return new_message(
        role=role,
        content=content_text(content) or text(raw.get("refusal")),
        tool_calls=calls,
        tool_call_id=optional_text(call_id),
        name=optional_text(raw.get("name")),
        reasoning=optional_text(raw.get("reasoning") if reasoning is None else reasoning),
    )


def content_text(content: Any) -> str:
    """Return a message's content as text; with parts of other types, all as JSON."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return "".join([text(part.get("text")) for part in content])
    return json_text(content)


def split_thinking(parts: list[Any]) -> tuple[str, str]:
    """Return the text of content parts, and separately that of parts of type `thinking` (Mistral)."""
    thinking = [part for part in parts if isinstance(part, dict) and part.get("type") == "thinking"]
    if not thinking:
        return content_text(parts), ""
    rest = [part for part in parts if not any(part is other for other in thinking)]
    return content_text(rest), "".join([content_text(part.get("thinking")) for part in thinking])


def text(value: Any) -> str:
    """Return a string unchanged, None as an empty string, any other value as JSON text."""
    if isinstance(value, str):
        return value
    return "" if value is None else json_text(value)


def optional_text(value: Any) -> str | None:
    """Do as `text`, but return None for None."""
    return None if value is None else text(value)


def json_text(value: Any) -> str:
    """Return a value as compact JSON."""
    return orjson.dumps(value).decode()


def count(value: Any) -> int | None:
    """Return an upstream's token count; None if it is not an integer from 0 to 2^31 - 1."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def custom_arguments(free_text: str) -> str:
    """Return the input of a custom tool as arguments of the function that replaces it."""
    return json_text({"input": free_text})


def _tool_call(raw: Any) -> ToolCall:
    if not isinstance(raw, dict):
        return new_tool_call(call_id="", name="", arguments=json_text(raw))
    function, custom = raw.get("function"), raw.get("custom")
    if isinstance(function, dict):
        return new_tool_call(
            call_id=text(raw.get("id")), name=text(function.get("name")), arguments=text(function.get("arguments"))
        )
    if isinstance(custom, dict):
        arguments = custom_arguments(text(custom.get("input")))
        return new_tool_call(call_id=text(raw.get("id")), name=text(custom.get("name")), arguments=arguments)
    return new_tool_call(call_id=text(raw.get("id")), name=text(raw.get("type")), arguments=json_text(raw))


def _function_call(raw: Any) -> ToolCall:
    """Convert a `function_call`, the older form of one call per message; its id is the function's name."""
    if not isinstance(raw, dict):
        return new_tool_call(call_id="", name="", arguments=json_text(raw))
    name = text(raw.get("name"))
    return new_tool_call(call_id=name, name=name, arguments=text(raw.get("arguments")))
