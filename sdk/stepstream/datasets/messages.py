"""Convert messages to and from the shape of OpenAI's chat API, which most formats share. Pure."""

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import orjson

from stepstream.topics.events import Message, ToolCall, new_message, new_tool_call


def to_chat(message: Message) -> dict[str, Any]:
    """Return the message in the chat API's shape, without the results of its calls."""
    chat: dict[str, Any] = {"role": message["role"], "content": message["content"]}
    if message["tool_calls"]:
        chat["content"] = message["content"] or None
        chat["tool_calls"] = [
            {
                "id": call["call_id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in message["tool_calls"]
        ]
    if message["tool_call_id"] is not None:
        chat["tool_call_id"] = message["tool_call_id"]
    if message["name"] is not None:
        chat["name"] = message["name"]
    if message["reasoning"] is not None:
        chat["reasoning_content"] = message["reasoning"]
    return chat


def from_chat(raw: Mapping[str, Any], omitted: set[str]) -> Message:
    """Convert a message of the chat API, also its older form with `function_call`.

    Names of unsupported parts are added to `omitted`.
    """
    calls = [_call(call) for call in raw.get("tool_calls") or []]
    legacy = raw.get("function_call")
    if legacy is not None and not calls:
        calls = [new_tool_call(call_id=legacy["name"], name=legacy["name"], arguments=text_of(legacy["arguments"]))]
    role, tool_call_id = raw["role"], raw.get("tool_call_id")
    if role == "function":
        role, tool_call_id = "tool", raw.get("name")
    return new_message(
        role=str(role),
        content=content_of(raw.get("content"), omitted) or text_of(raw.get("refusal")),
        tool_calls=calls,
        tool_call_id=None if tool_call_id is None else str(tool_call_id),
        name=_optional(raw.get("name")),
        reasoning=_optional(raw.get("reasoning_content", raw.get("reasoning"))),
    )


def content_of(content: Any, omitted: set[str]) -> str:
    """Return content as text: parts joined by newlines, parts without text as `[type]`."""
    if not isinstance(content, list):
        return text_of(content)
    texts = []
    for part in content:
        text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else part
        if isinstance(text, str):
            texts.append(text)
        else:
            kind = part.get("type", "part") if isinstance(part, Mapping) else "part"
            omitted.add(f"content of type {kind}")
            texts.append(f"[{kind}]")
    return "\n".join(texts)


def text_of(value: Any) -> str:
    """Return a string unchanged, "" for None, and other values as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


def arguments_object(text: str) -> dict[str, Any]:
    """Return a call's arguments as an object; text that is no JSON object goes under `arguments`."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"arguments": text}


def digest(document: Any) -> str:
    """Return a name for an unnamed document: 32 hexadecimal digits of its SHA-256, independent of the keys' order."""
    return hashlib.sha256(orjson.dumps(document, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def unknown_fields(document: Mapping[str, Any], known: Collection[str]) -> set[str]:
    """Return the names of nonempty fields that are not in `known`."""
    return {name for name, value in document.items() if name not in known and value not in (None, [], {}, "")}


def _call(raw: Mapping[str, Any]) -> ToolCall:
    function, custom = raw.get("function") or raw, raw.get("custom")
    if custom:
        function = {"name": custom["name"], "arguments": {"input": custom.get("input")}}
    return new_tool_call(
        call_id=text_of(raw.get("id")), name=text_of(function["name"]), arguments=text_of(function.get("arguments"))
    )


def _optional(value: Any) -> str | None:
    return None if value is None else text_of(value)
