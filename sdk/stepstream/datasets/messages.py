"""Messages in the shape of OpenAI's chat API, the one that most formats borrow. Pure."""

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import orjson

from stepstream.topics.events import Message, ToolCall, new_message, new_tool_call


def to_chat(message: Message) -> dict[str, Any]:
    """The message as the chat API has it; what a call gave back has no place in it."""
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


def from_chat(raw: Mapping[str, Any], lost: set[str]) -> Message:
    """A message of the chat API, its older form with `function_call` too; `lost` is told of parts without a place."""
    calls = [_call(call) for call in raw.get("tool_calls") or []]
    legacy = raw.get("function_call")
    if legacy is not None and not calls:
        calls = [new_tool_call(call_id=legacy["name"], name=legacy["name"], arguments=text_of(legacy["arguments"]))]
    role, answers = raw["role"], raw.get("tool_call_id")
    if role == "function":
        role, answers = "tool", raw.get("name")
    return new_message(
        role=str(role),
        content=content_of(raw.get("content"), lost) or text_of(raw.get("refusal")),
        tool_calls=calls,
        tool_call_id=None if answers is None else str(answers),
        name=_optional(raw.get("name")),
        reasoning=_optional(raw.get("reasoning_content", raw.get("reasoning"))),
    )


def content_of(content: Any, lost: set[str]) -> str:
    """A content as text; of parts, the texts, and others by their kind."""
    if not isinstance(content, list):
        return text_of(content)
    texts = []
    for part in content:
        said = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else part
        if isinstance(said, str):
            texts.append(said)
        else:
            kind = part.get("type", "part") if isinstance(part, Mapping) else "part"
            lost.add(f"content of type {kind}")
            texts.append(f"[{kind}]")
    return "\n".join(texts)


def text_of(value: Any) -> str:
    """A string as it is, nothing as an empty one, anything else as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


def arguments_of(text: str) -> dict[str, Any]:
    """Arguments as the object that some formats ask for; what is no object goes under `arguments`."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"arguments": text}


def digest_of(document: Any) -> str:
    """A name for a document that has none: of its content, however its keys are ordered."""
    return hashlib.sha256(orjson.dumps(document, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def others(document: Mapping[str, Any], known: Collection[str]) -> set[str]:
    """Names of what a document has beside what is known, and is not empty: a record has no place for it."""
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
