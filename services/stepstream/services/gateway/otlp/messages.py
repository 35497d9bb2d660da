"""Convert the messages of every generation of GenAI instrumentation into the topic's form."""

from collections.abc import Iterable, Sequence
from typing import Any

import fastavro

from stepstream.schemas import schema
from stepstream.services.gateway.otlp.attributes import Attributes, structure, text
from stepstream.topics.avro_writer import compile_writer
from stepstream.topics.events import Message, ToolCall, new_message

STEP: Any = fastavro.parse_schema(schema("Step"))
encode_message = compile_writer(STEP, "stepstream.Message")
"""Encode a message as on the topic: equal messages have equal bytes."""

FINISH = {
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "safety": "content_filter",
}
"""Chat completions' finish reasons for those of other protocols."""


def finish_reason(value: Any) -> str:
    """Return a finish reason in the topic's terms; the first of several, which may be JSON text."""
    if type(value) is str and value.startswith("["):
        value = structure(value)
    if isinstance(value, list):
        value = value[0] if value else ""
    if not value:
        return ""
    word = value.lower() if type(value) is str else text(value).lower()
    return FINISH.get(word, word)


def part_messages(raw: Any) -> list[Message]:
    """Return the messages of `gen_ai.input.messages` or `gen_ai.output.messages`, made of typed parts."""
    raw = structure(raw)
    if not isinstance(raw, list):
        return [new_message(role="user", content=text(raw))] if raw else []
    messages: list[Message] = []
    for item in raw:
        simple = _plain(item)
        if simple is not None:
            messages.append(simple)
        else:
            messages += _of_parts(item)
    return messages


def _plain(item: Any) -> Message | None:
    """Return a message of texts and tool calls, the common case; None: any other message."""
    try:
        role, parts = item["role"], item["parts"]
        content = ""
        calls: list[ToolCall] = []
        for part in parts:
            kind = part["type"]
            if kind == "text":
                content = content + part["content"] if content else part["content"]
            elif kind == "tool_call":
                calls.append(_call(part["id"], part["name"], part["arguments"]))
            else:
                return None
    except (KeyError, TypeError):
        return None
    if type(role) is not str or type(content) is not str or "name" in item:
        return None
    return {
        "role": role,
        "content": content,
        "tool_calls": calls,
        "tool_call_id": None,
        "name": None,
        "reasoning": None,
    }


def instructions(raw: Any) -> list[Message]:
    """Return the system message of `gen_ai.system_instructions`, the parts of one message."""
    raw = structure(raw)
    return _of_parts({"role": "system", "parts": raw if isinstance(raw, list) else [raw]}) if raw else []


def _of_parts(item: Any) -> list[Message]:
    """Return one message, or several if it has the results of several tools."""
    if not isinstance(item, dict):
        return [new_message(role="user", content=text(item))]
    parts = item.get("parts")
    if not isinstance(parts, list):
        return [chat_message(item)]
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    results: list[Message] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            texts.append(text(part.get("content")))
        elif kind == "tool_call":
            calls.append(_call(part.get("id"), part.get("name"), part.get("arguments")))
        elif kind == "tool_call_response":
            answer = part["response"] if "response" in part else part.get("result")
            results.append(new_message(role="tool", content=text(answer), tool_call_id=text(part.get("id")) or None))
        elif kind == "reasoning":
            reasoning.append(text(part.get("content")))
        else:
            texts.append(text(part))
    if results and not texts and not calls:
        return results
    message = new_message(
        role=text(item.get("role")) or "user",
        content="".join(texts),
        tool_calls=calls,
        name=text(item.get("name")) or None,
        reasoning="".join(reasoning) or None,
    )
    return [message, *results]


def chat_message(item: Attributes, role: str = "") -> Message:
    """Return a message from a dict in the form of chat completions; `role` is its default."""
    content = item.get("content")
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        content = "".join(part["text"] for part in content)
    calls = structure(item.get("tool_calls"))
    role = text(item.get("role")) or role or "user"
    answered = item.get("tool_call_id") or (item.get("id") if role == "tool" else None)
    return new_message(
        role=role,
        content=text(content),
        tool_calls=[_chat_call(call) for call in calls] if isinstance(calls, list) else [],
        tool_call_id=text(answered) or None,
        name=text(item.get("name")) or None,
        reasoning=text(item.get("reasoning_content") or item.get("reasoning")) or None,
    )


def _chat_call(raw: Any) -> ToolCall:
    if not isinstance(raw, dict):
        return _call("", "", raw)
    function, custom = raw.get("function"), raw.get("custom")
    if isinstance(custom, dict):
        return _call(raw.get("id"), custom.get("name"), {"input": custom.get("input")})
    if not isinstance(function, dict):
        return _call(raw.get("id"), raw.get("name"), raw.get("arguments"))
    return _call(raw.get("id"), function.get("name"), function.get("arguments"))


def _call(call_id: Any, name: Any, arguments: Any) -> ToolCall:
    return {
        "call_id": call_id if type(call_id) is str else text(call_id),
        "name": name if type(name) is str else text(name),
        "arguments": text(arguments),
        "result": None,
        "error": None,
        "duration_ms": None,
    }


def nested(attributes: Attributes, prefix: str) -> list[Any]:
    """Return attributes with numbered names as a nested list.

    `PREFIX.0.role`, `PREFIX.0.tool_calls.1.name` -> `[{"role": …, "tool_calls": [None…, {"name": …}]}]`; levels whose
    names are all numbers are lists, in their order.
    """
    tree: dict[str, Any] = {}
    skip = len(prefix) + 1
    for name, value in attributes.items():
        if name.startswith(prefix) and name[skip - 1 : skip] == ".":
            *path, last = name[skip:].split(".")
            level = tree
            for step in path:
                below = level.get(step)
                if not isinstance(below, dict):
                    below = level[step] = {}
                level = below
            level[last] = value
    spelled = _lists(tree)
    return spelled if isinstance(spelled, list) else []


def _lists(level: Any) -> Any:
    if not isinstance(level, dict):
        return level
    if level and all(name.isdecimal() for name in level):
        return [_lists(level[name]) for name in sorted(level, key=int)]
    return {name: _lists(value) for name, value in level.items()}


def indexed_messages(attributes: Attributes, prefix: str) -> list[Message]:
    """Return the messages of OpenLLMetry's `gen_ai.prompt.N.role`, `….content`, `….tool_calls.M.name`."""
    return [chat_message(item) for item in nested(attributes, prefix) if isinstance(item, dict)]


def inference_messages(attributes: Attributes, prefix: str) -> list[Message]:
    """Return the messages of OpenInference's `llm.input_messages.N.message.role` and so on."""
    return [
        chat_message(_inference(item["message"]))
        for item in nested(attributes, prefix)
        if isinstance(item, dict) and isinstance(item.get("message"), dict)
    ]


def _inference(message: Attributes) -> Attributes:
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [call.get("tool_call", call) if isinstance(call, dict) else call for call in calls]
    contents = message.get("contents")
    if "content" not in message and isinstance(contents, list):
        parts = [part.get("message_content", part) if isinstance(part, dict) else part for part in contents]
        message["content"] = [
            part if isinstance(part, dict) and "text" in part else {"text": text(part)} for part in parts
        ]
    return message


EVENT_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
CHOICE = "gen_ai.choice"


def event_messages(events: Iterable[tuple[str, Any]]) -> tuple[list[Message], Message | None, str]:
    """Return prompt, response and finish reason of one call, from its message events in order.

    Args:
        events: name and content; the content of a log record is its body, that of a span event its attributes.
    """
    prompt: list[Message] = []
    response: Message | None = None
    finish = ""
    for name, content in events:
        fields = content if isinstance(content, dict) else {"content": content}
        role = EVENT_ROLES.get(name)
        if role is not None:
            prompt.append(chat_message(fields, role))
        elif name == CHOICE and response is None:
            finish = finish_reason(fields.get("finish_reason"))
            message = structure(fields.get("message"))
            inner = message if isinstance(message, dict) else {"content": message if message is not None else ""}
            # In a span event the calls are beside the message.
            calls = {"tool_calls": fields["tool_calls"]} if "tool_calls" in fields else {}
            response = chat_message(
                {**fields, **inner, **calls} if message is None else {**calls, **inner}, "assistant"
            )
    return prompt, response, finish


def merge_turns(messages: list[Message]) -> list[Message]:
    """Join the assistant's messages in a row to one, as the model gave them in one answer."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is None or last["role"] != "assistant" or message["role"] != "assistant":
            merged.append(message)
            continue
        reasoning = [part for part in (last["reasoning"], message["reasoning"]) if part]
        merged[-1] = {
            **last,
            "content": last["content"] + message["content"],
            "tool_calls": [*last["tool_calls"], *message["tool_calls"]],
            "reasoning": "\n".join(reasoning) or None,
        }
    return merged


def shared_prefix(prompt: Sequence[bytes], before: Sequence[bytes]) -> int:
    """Return the number of leading messages of a prompt that equal those of the previous step, with its response."""
    if not before:
        return 0
    for index, (new, old) in enumerate(zip(prompt, before, strict=False)):
        if new != old:
            return index
    return min(len(prompt), len(before))
