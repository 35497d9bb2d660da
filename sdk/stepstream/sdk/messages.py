"""What users hand over, as the log keeps it: messages in OpenAI's shape, as dicts or a client's objects. Pure.

A response in the tokens that were sampled. Pure.

Which call of a response a tool's result belongs to. Pure.
"""

import json
import uuid
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from stepstream.core.lenient_json import sound_text
from stepstream.topics.events import Message, PolicySpan, ToolCall, new_message, new_policy_span, new_tool_call

_TEXTS = ("text", "input_text", "output_text")
_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}


def message_of(raw: Any, role: str = "user") -> Message:
    """A message: a dict or object in the shape of OpenAI's chat API, or a text of `role`.

    Items of its Responses API and messages of LangChain, which have a `type` and no role, are understood too.
    """
    raw = plain(raw)
    if not isinstance(raw, Mapping):
        return new_message(role=role, content=text_of(raw))
    if not raw.get("role"):
        raw = _with_role(raw, role)
    reasoning = raw.get("reasoning", raw.get("reasoning_content"))
    role, answers = text_of(raw["role"]), raw.get("tool_call_id")
    calls, alone = raw.get("tool_calls") or [], raw.get("function_call")
    if isinstance(alone, Mapping) and not calls:  # as it was told before there were several in one message
        calls = [{**alone, "id": alone.get("name")}]
    if role == "function":
        role, answers = "tool", raw.get("name")
    return new_message(
        role=role,
        content=content_of(raw.get("content")) or text_of(raw.get("refusal")),
        tool_calls=[tool_call_of(call) for call in calls],
        tool_call_id=optional_text(answers),
        name=optional_text(raw.get("name")),
        reasoning=optional_text(reasoning),
    )


def tool_call_of(raw: Any) -> ToolCall:
    """A tool call: in OpenAI's shape, or flat with `name`, `arguments` and `id` or `call_id`.

    The free text given to a custom tool becomes the arguments of the function that stands for it: `{"input": …}`.
    """
    raw = plain(raw)
    if not isinstance(raw, Mapping):
        return new_tool_call(call_id="", name="", arguments=text_of(raw))
    function, custom = raw.get("function"), raw.get("custom")
    inner = function if isinstance(function, Mapping) else raw
    if isinstance(custom, Mapping):
        inner = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
    return new_tool_call(
        call_id=text_of(raw.get("call_id", raw.get("id"))),
        name=text_of(inner.get("name")),
        arguments=text_of(inner.get("arguments", inner.get("args"))),
        result=optional_text(raw.get("result")),
        error=optional_text(raw.get("error")),
    )


def each_of(messages: Any) -> Iterable[Any]:
    """The messages of a prompt; a text, a message alone or nothing is taken for what it says."""
    if messages is None:
        return ()
    alone = isinstance(messages, str | Mapping) or callable(getattr(messages, "model_dump", None))
    return (messages,) if alone else messages


def content_of(content: Any) -> str:
    """A message's content as text; parts that are not text are kept as JSON."""
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") in _TEXTS for part in content):
        return "".join([text_of(part.get("text")) for part in content])
    return text_of(content)


def _with_role(raw: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    kind = raw.get("type")
    if kind == "function_call":
        return {"role": "assistant", "tool_calls": [raw]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": raw.get("call_id"), "content": raw.get("output")}
    known = any(name in raw for name in ("content", "tool_calls", "function_call", "refusal"))
    return {**raw, "role": _ROLES.get(str(kind), role)} if known else {"role": role, "content": text_of(raw)}


def text_of(value: Any) -> str:
    """A string as it is, nothing as an empty one, anything else as JSON; what is no JSON as Python shows it.

    Whatever it holds, it is a text that can be written: half of a surrogate pair becomes U+FFFD.
    """
    if isinstance(value, str):
        return value if value.isascii() else sound_text(value)
    if value is None:
        return ""
    try:
        return orjson.dumps(value, default=_shown, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY).decode()
    except orjson.JSONEncodeError:  # numbers of more than 64 bits, half of a surrogate pair
        pass
    try:
        return sound_text(json.dumps(value, default=_shown, ensure_ascii=False, separators=(",", ":")))
    except Exception:  # it holds itself, has tuples for keys, or will not be looked at
        return _shown_at_all(value)


def name_of(value: Any) -> str:
    """What identifies something: a text, a number, a UUID."""
    text = str(value)
    return text if text.isascii() else sound_text(text)


def plain(value: Any) -> Any:
    """A client library's object (anything with `model_dump`, as pydantic's) as plain data."""
    dump = getattr(value, "model_dump", None)
    return dump() if callable(dump) else value


def optional_text(value: Any) -> str | None:
    """As `text_of`; None for nothing."""
    return None if value is None else text_of(value)


def _shown(value: Any) -> Any:
    data = plain(value)
    return data if data is not value else _shown_at_all(value)


def _shown_at_all(value: Any) -> str:
    try:
        return sound_text(repr(value))
    except Exception:
        return f"<{type(value).__name__}>"


class TokenSpan:
    """A sampled response in tokens, with the whole prompt's: lists, arrays or tensors of numbers."""

    def __init__(self, prompt: Iterable[int], response: Iterable[int], logprobs: Iterable[float], version: int) -> None:
        """Raises ValueError, TypeError or OverflowError for what is none."""
        self.prompt, self.response = _numbers("i", prompt), _numbers("i", response)
        self.logprobs = _numbers("d", logprobs)
        self.version = version
        if not self.response or len(self.response) != len(self.logprobs) or version < 0:
            raise ValueError(f"{len(self.response)} tokens, {len(self.logprobs)} logprobs, version {version}")

    def spans(self, model: str) -> list[PolicySpan]:
        """All of the response was sampled by one version."""
        return [new_policy_span(start=0, end=len(self.response), model=model, version=self.version)]


def _numbers(code: str, values: Any) -> list[Any]:
    """Python's numbers of any kind that `array` has a code for."""
    tolist = getattr(values, "tolist", None)
    return array(code, tolist() if callable(tolist) else values).tolist()


def attach(response: Message, used: Iterable[ToolCall]) -> None:
    """Gives the response's calls what their tools gave back; a tool that it does not call becomes a call of its own."""
    for use in used:
        call = _unanswered(response["tool_calls"], use)
        if call is None:
            response["tool_calls"].append({**use, "call_id": use["call_id"] or f"call_{uuid.uuid4().hex[:12]}"})
        else:
            call["result"], call["error"], call["duration_ms"] = use["result"], use["error"], use["duration_ms"]


def _unanswered(calls: Iterable[ToolCall], use: ToolCall) -> ToolCall | None:
    waiting = [
        call
        for call in calls
        if call["name"] == use["name"] and call["result"] is None and call["error"] is None and not call["duration_ms"]
    ]
    if use["call_id"]:
        return next((call for call in waiting if call["call_id"] == use["call_id"]), None)
    same = [call for call in waiting if _squeezed(call["arguments"]) == _squeezed(use["arguments"])]
    return next(iter(same or waiting), None)


def _squeezed(arguments: str) -> str:
    return "".join(arguments.split())
