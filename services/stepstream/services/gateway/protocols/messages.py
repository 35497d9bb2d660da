"""Messages of OpenAI's chat API as the log keeps them, and helpers that every protocol reads its own with."""

from typing import Any

import orjson

from stepstream.topics.events import Message, ToolCall, new_message, new_tool_call


def record_message(raw: Any) -> Message:
    """A message of a request or a response in the log's form; what is malformed is kept as JSON text."""
    if not isinstance(raw, dict):
        return new_message(role="user", content=json_text(raw))
    role, answers, told = text(raw.get("role")) or "user", raw.get("tool_call_id"), raw.get("tool_calls")
    calls = [_tool_call(call) for call in told] if isinstance(told, list) else None
    if calls is None and raw.get("function_call") is not None:
        calls = [_function_call(raw["function_call"])]
    if role == "function":
        role, answers = "tool", raw.get("name")
    # Reasoning models' servers name it `reasoning_content` (vLLM, DeepSeek) or `reasoning` (OpenRouter, newer vLLM), or
    # put it into the content.
    reasoning, content = raw.get("reasoning_content"), raw.get("content")
    if isinstance(content, list):
        content, thought = said_and_thought(content)
        reasoning = thought or reasoning
    return new_message(
        role=role,
        content=content_text(content) or text(raw.get("refusal")),
        tool_calls=calls,
        tool_call_id=optional_text(answers),
        name=optional_text(raw.get("name")),
        reasoning=optional_text(raw.get("reasoning") if reasoning is None else reasoning),
    )


def content_text(content: Any) -> str:
    """A message's content as text; parts that are not text are kept as JSON."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return "".join([text(part.get("text")) for part in content])
    return json_text(content)


def said_and_thought(parts: list[Any]) -> tuple[str, str]:
    """A content of parts as text, and what those of type `thinking` hold (Mistral's) apart from it."""
    thoughts = [part for part in parts if isinstance(part, dict) and part.get("type") == "thinking"]
    if not thoughts:
        return content_text(parts), ""
    said = [part for part in parts if not any(part is thought for thought in thoughts)]
    return content_text(said), "".join([content_text(thought.get("thinking")) for thought in thoughts])


def text(value: Any) -> str:
    """A string as it is, nothing as an empty one, anything else as JSON text."""
    if isinstance(value, str):
        return value
    return "" if value is None else json_text(value)


def optional_text(value: Any) -> str | None:
    """As `text`, with None for nothing."""
    return None if value is None else text(value)


def json_text(value: Any) -> str:
    """A value as compact JSON."""
    return orjson.dumps(value).decode()


def number(value: Any) -> int | float | None:
    """A number of a request, or None: what is no number is the upstream's to refuse."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def count(value: Any) -> int | None:
    """A count of tokens as an upstream tells it, or None where it tells none that can be kept (0 to 2^31 - 1)."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def custom_arguments(given: str) -> str:
    """The free text given to a custom tool, as the arguments of the function that stands for it."""
    return json_text({"input": given})


def _tool_call(raw: Any) -> ToolCall:
    if not isinstance(raw, dict):
        return new_tool_call(call_id="", name="", arguments=json_text(raw))
    function, custom = raw.get("function"), raw.get("custom")
    if isinstance(function, dict):
        return new_tool_call(
            call_id=text(raw.get("id")), name=text(function.get("name")), arguments=text(function.get("arguments"))
        )
    if isinstance(custom, dict):
        given = custom_arguments(text(custom.get("input")))
        return new_tool_call(call_id=text(raw.get("id")), name=text(custom.get("name")), arguments=given)
    return new_tool_call(call_id=text(raw.get("id")), name=text(raw.get("type")), arguments=json_text(raw))


def _function_call(raw: Any) -> ToolCall:
    """A call as it was told before there were several in one message; its result names the function, as it does."""
    if not isinstance(raw, dict):
        return new_tool_call(call_id="", name="", arguments=json_text(raw))
    name = text(raw.get("name"))
    return new_tool_call(call_id=name, name=name, arguments=text(raw.get("arguments")))
