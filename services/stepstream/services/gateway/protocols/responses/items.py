"""Items of the Responses API as messages of a chat: one way for all uses, so that what is recorded never differs.

A response is a list of items (reasoning, messages, calls), and the next request repeats it as the client's library
writes it: with or without ids, statuses and nulls. Items of the model that follow one another become one message of the
assistant; what is recorded of a response and what is read of the request that repeats it are therefore equal.

Items that a request only names: some clients give the ids of a response's items instead of repeating them. Pure.

The AI SDK does so by default: it takes it that the server stores responses (`store` is true unless said otherwise).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepstream.services.gateway.protocols.messages import custom_arguments, json_text, record_message, text
from stepstream.topics.events import Message

Raw = dict[str, Any]

_BOOKKEEPING = frozenset({"id", "status", "created_by"})
_MODELS_OWN = frozenset({"reasoning", "compaction", "mcp_list_tools", "mcp_approval_request", "program"})
_CALLS = frozenset({"function_call", "custom_tool_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})


@dataclass(slots=True)
class ChatMessages:
    """Items as raw chat messages."""

    messages: list[Raw] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    """What of the items a chat completion cannot carry, in words; it is kept as JSON all the same."""


def items_of(value: Any) -> list[Any]:
    """The items of a request's `input`: a text is one message of the user."""
    if isinstance(value, list):
        return value
    return [] if value is None else [{"role": "user", "content": value}]


def chat_messages(items: Iterable[Any]) -> ChatMessages:
    """All items, in order, as raw chat messages."""
    out = ChatMessages()
    turn: list[Raw] = []
    for item in items:
        if _is_models(item):
            turn.append(item)
            continue
        if turn:
            out.messages.append(_assistant(turn, out.unsupported))
            turn = []
        out.messages.append(_other(item, out.unsupported))
    if turn:
        out.messages.append(_assistant(turn, out.unsupported))
    return out


def assistant_message(items: Sequence[Any]) -> Message:
    """What a response's items say, in the log's form."""
    return record_message(_assistant([item for item in items if isinstance(item, dict)], []))


def calls_tools(items: Iterable[Any]) -> bool:
    """Whether a response waits for results of the caller's tools."""
    return any(isinstance(item, dict) and item.get("type") in _CALLS for item in items)


def _is_models(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    kind = _kind(item)
    if kind == "message":
        return item.get("role") == "assistant"
    return kind in _MODELS_OWN or kind.endswith("_call")


def _kind(item: Raw) -> str:
    """An item's type; a message may leave it out."""
    return text(item.get("type")) or "message"


def _assistant(items: Sequence[Raw], unsupported: list[str]) -> Raw:
    said: list[str] = []
    thought: list[str] = []
    calls: list[Raw] = []
    for item in items:
        kind = _kind(item)
        if kind == "message":
            said.append(_said(item.get("content")))
        elif kind == "reasoning":
            thought.append(_thought(item))
        elif kind == "function_call":
            calls.append(_call(item, text(item.get("arguments"))))
        elif kind == "custom_tool_call":
            calls.append(_call(item, custom_arguments(text(item.get("input")))))
        else:
            unsupported.append(f"items of type '{kind}'")
            calls.append(_bare(item) | {"id": text(item.get("call_id"))})
    content = "\n".join([part for part in said if part])
    message: Raw = {"role": "assistant", "content": content or (None if calls else "")}
    reasoning = "\n\n".join([part for part in thought if part])
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _call(item: Raw, arguments: str) -> Raw:
    function = {"name": text(item.get("name")), "arguments": arguments}
    return {"id": text(item.get("call_id")), "type": "function", "function": function}


def _said(content: Any) -> str:
    if not isinstance(content, list):
        return text(content)
    return "".join([_said_part(part) for part in content])


def _said_part(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("output_text", "input_text", "text"):
        return text(part.get("text"))
    return text(part.get("refusal")) if kind == "refusal" else json_text(_without_nulls(part))


def _thought(item: Raw) -> str:
    """A reasoning item's own words where they are shown, else its summary."""
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
    if kind in _OUTPUTS:
        return {"role": "tool", "tool_call_id": text(item.get("call_id")), "content": _result(item, unsupported)}
    unsupported.append(f"items of type '{kind}'")
    bare = json_text(_bare(item))
    if kind.endswith("_output"):
        return {"role": "tool", "tool_call_id": text(item.get("call_id")), "content": bare}
    return {"role": "user", "content": json_text(_without_nulls(item))}


def _content(content: Any, unsupported: list[str]) -> str | list[Raw]:
    if not isinstance(content, list):
        return text(content)
    parts = [_part(part, unsupported) for part in content]
    if len(parts) == 1 and parts[0].get("type") == "text":
        return text(parts[0]["text"])
    return parts


def _result(item: Raw, unsupported: list[str]) -> str:
    output = item.get("output")
    if not isinstance(output, list):
        return text(output)
    parts = [_part(part, []) for part in output]
    if all(part.get("type") == "text" for part in parts):
        return "".join([text(part["text"]) for part in parts])
    unsupported.append("results of tools that are not text")
    return json_text(parts)


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
        kept = ("file_id", "file_data", "filename")
        return {"type": "file", "file": {name: part[name] for name in kept if part.get(name) is not None}}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    unsupported.append(f"content of type '{kind}'" + (" that is named by an id or URL" if kind in _FILES else ""))
    return dict(_without_nulls(part))


_FILES = ("input_image", "input_file")


def _bare(item: Raw) -> Raw:
    """An item as every client's library repeats it: without bookkeeping and nulls, its fields in one order."""
    return {
        name: _without_nulls(item[name]) for name in sorted(item) if name not in _BOOKKEEPING and item[name] is not None
    }


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(value[name]) for name in sorted(value) if value[name] is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


SHORTEST_ID = 24
"""Shorter ids, as `msg_1` of some local servers, name items of different callers: those are not kept."""

Known = Callable[[str], Raw | None]
"""The item of an id, where it is known."""


def nameable(items: Iterable[Any]) -> list[Raw]:
    """The items with an id that only their own caller knows."""
    return [
        item
        for item in items
        if isinstance(item, dict) and isinstance(item.get("id"), str) and len(item["id"]) >= SHORTEST_ID
    ]


def resolved(request: Raw, known: Known) -> Raw:
    """The request with the items that its input only names put in; a name that is not known stays as it is."""
    items = request.get("input")
    if not isinstance(items, list) or not any(_is_reference(item) for item in items):
        return request
    return request | {
        "input": [(known(str(item.get("id"))) or item) if _is_reference(item) else item for item in items]
    }


def _is_reference(item: Any) -> bool:
    # The type may be left out where there is an id and nothing else.
    return isinstance(item, dict) and (item.get("type") == "item_reference" or item.keys() == {"id"})
