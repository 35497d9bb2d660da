"""Convert items of the Responses API to chat messages, and resolve references to items. Pure.

A response is a list of items (reasoning, messages, calls). The next request repeats them as the client's library
serialises them: with or without ids, statuses and nulls. Consecutive items of the model become one assistant message,
by the same code for replies and requests. A recorded response therefore equals the request that repeats it.

Some clients send the ids of items instead of the items. The AI SDK does so by default, since `store` defaults to true.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepstream.services.gateway.protocols.messages import custom_arguments, json_text, record_message, text
from stepstream.topics.events import Message

Raw = dict[str, Any]

_BOOKKEEPING = frozenset({"id", "status", "created_by"})
_MODEL_ITEMS = frozenset({"reasoning", "compaction", "mcp_list_tools", "mcp_approval_request", "program"})
_CALLS = frozenset({"function_call", "custom_tool_call"})
_FILES = ("input_image", "input_file")
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})

SHORTEST_ID = 24
"""Shorter ids, as `msg_1` of some local servers, collide between callers: such items are not saved."""

ItemLookup = Callable[[str], Raw | None]
"""Returns the item of an id; None: unknown."""


@dataclass(slots=True)
class ChatMessages:
    """Items converted to raw chat messages."""

    messages: list[Raw] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    """Descriptions of content that chat completions do not support; the messages contain it as JSON."""


def items_of(value: Any) -> list[Any]:
    """Return the items of a request's `input`; a string is one user message."""
    if isinstance(value, list):
        return value
    return [] if value is None else [{"role": "user", "content": value}]


def chat_messages(items: Iterable[Any]) -> ChatMessages:
    """Convert items, in order, to raw chat messages.

    Images and files in tools' results follow the results in a message of the user: chat completions take them nowhere
    else.
    """
    out = ChatMessages()
    turn: list[Raw] = []
    files: list[Raw] = []
    for item in items:
        if files and not _is_result(item):
            out.messages.append({"role": "user", "content": files})
            files = []
        if _is_from_model(item):
            turn.append(item)
            continue
        if turn:
            out.messages.append(_assistant(turn, out.unsupported))
            turn = []
        if _is_result(item):
            result, more = _result(item, out.unsupported)
            out.messages.append({"role": "tool", "tool_call_id": text(item.get("call_id")), "content": result})
            files += more
        else:
            out.messages.append(_other(item, out.unsupported))
    if files:
        out.messages.append({"role": "user", "content": files})
    if turn:
        out.messages.append(_assistant(turn, out.unsupported))
    return out


def assistant_message(items: Sequence[Any]) -> Message:
    """Return a response's items as a message of the log."""
    return record_message(_assistant([item for item in items if isinstance(item, dict)], []))


def calls_tools(items: Iterable[Any]) -> bool:
    """Return True if a response waits for results of the caller's tools."""
    return any(isinstance(item, dict) and item.get("type") in _CALLS for item in items)


def _is_from_model(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    kind = _kind(item)
    if kind == "message":
        return item.get("role") == "assistant"
    return kind in _MODEL_ITEMS or kind.endswith("_call")


def _kind(item: Raw) -> str:
    """Return an item's type, which a message may omit."""
    return text(item.get("type")) or "message"


def _assistant(items: Sequence[Raw], unsupported: list[str]) -> Raw:
    texts: list[str] = []
    reasonings: list[str] = []
    calls: list[Raw] = []
    for item in items:
        kind = _kind(item)
        if kind == "message":
            texts.append(_message_text(item.get("content")))
        elif kind == "reasoning":
            reasonings.append(_reasoning_text(item))
        elif kind == "function_call":
            calls.append(_call(item, text(item.get("arguments"))))
        elif kind == "custom_tool_call":
            calls.append(_call(item, custom_arguments(text(item.get("input")))))
        else:
            unsupported.append(f"items of type '{kind}'")
            calls.append(_bare(item) | {"id": text(item.get("call_id"))})
    content = "\n".join([part for part in texts if part])
    message: Raw = {"role": "assistant", "content": content or (None if calls else "")}
    reasoning = "\n\n".join([part for part in reasonings if part])
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _call(item: Raw, arguments: str) -> Raw:
    function = {"name": text(item.get("name")), "arguments": arguments}
    return {"id": text(item.get("call_id")), "type": "function", "function": function}


def _message_text(content: Any) -> str:
    if not isinstance(content, list):
        return text(content)
    return "".join([_part_text(part) for part in content])


def _part_text(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("output_text", "input_text", "text"):
        return text(part.get("text"))
    return text(part.get("refusal")) if kind == "refusal" else json_text(_without_nulls(part))


def _reasoning_text(item: Raw) -> str:
    """Return the text of a reasoning item, else its summary."""
    for name in ("content", "summary"):
        parts = item.get(name)
        if isinstance(parts, list) and parts:
            return "\n\n".join([text(part.get("text")) if isinstance(part, dict) else text(part) for part in parts])
    return ""


def _other(item: Any, unsupported: list[str]) -> Raw:
    if not isinstance(item, dict):
        unsupported.append("items that are not objects")
        return {"role": "user", "content": text(item)}
    kind = _kind(item)
    if kind == "message":
        return {"role": text(item.get("role")) or "user", "content": _content(item.get("content"), unsupported)}
    unsupported.append(f"items of type '{kind}'")
    content = json_text(_bare(item))
    if kind.endswith("_output"):
        return {"role": "tool", "tool_call_id": text(item.get("call_id")), "content": content}
    return {"role": "user", "content": json_text(_without_nulls(item))}


def _content(content: Any, unsupported: list[str]) -> str | list[Raw]:
    if not isinstance(content, list):
        return text(content)
    parts = [_part(part, unsupported) for part in content]
    if len(parts) == 1 and parts[0].get("type") == "text":
        return text(parts[0]["text"])
    return parts


def _is_result(item: Any) -> bool:
    return isinstance(item, dict) and _kind(item) in _OUTPUTS


def _result(item: Raw, unsupported: list[str]) -> tuple[str, list[Raw]]:
    """Return the text of a tool's result, and its other parts."""
    output = item.get("output")
    if not isinstance(output, list):
        return text(output), []
    parts = [_part(part, unsupported) for part in output]
    texts = [text(part["text"]) for part in parts if part.get("type") == "text"]
    return "".join(texts), [part for part in parts if part.get("type") != "text"]


def _part(part: Any, unsupported: list[str]) -> Raw:
    if not isinstance(part, dict):
        return {"type": "text", "text": text(part)}
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": text(part.get("text"))}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        detail = {"detail": part["detail"]} if part.get("detail") is not None else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"]} | detail}
    if kind == "input_file" and part.get("file_url") is None:
        fields = ("file_id", "file_data", "filename")
        return {"type": "file", "file": {name: part[name] for name in fields if part.get(name) is not None}}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    unsupported.append(f"content of type '{kind}'" + (" given by id or URL" if kind in _FILES else ""))
    return dict(_without_nulls(part))


def _bare(item: Raw) -> Raw:
    """Return an item in a form independent of the client's library: no bookkeeping, no nulls, sorted fields."""
    return {
        name: _without_nulls(item[name]) for name in sorted(item) if name not in _BOOKKEEPING and item[name] is not None
    }


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(value[name]) for name in sorted(value) if value[name] is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def referable_items(items: Iterable[Any]) -> list[Raw]:
    """Return the items whose ids only their own caller knows."""
    return [
        item
        for item in items
        if isinstance(item, dict) and isinstance(item.get("id"), str) and len(item["id"]) >= SHORTEST_ID
    ]


def resolve_references(request: Raw, lookup: ItemLookup) -> Raw:
    """Return the request with items in place of references; unknown references stay."""
    items = request.get("input")
    if not isinstance(items, list) or not any(_is_reference(item) for item in items):
        return request
    return request | {
        "input": [(lookup(str(item.get("id"))) or item) if _is_reference(item) else item for item in items]
    }


def _is_reference(item: Any) -> bool:
    # The type may be omitted if there is only an id.
    return isinstance(item, dict) and (item.get("type") == "item_reference" or item.keys() == {"id"})
