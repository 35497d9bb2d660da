"""Convert messages, tool calls and sampled tokens from users' shapes to the fields of steps. Pure."""

import json
import uuid
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from stepstream.core.lenient_json import valid_text
from stepstream.topics.events import Message, PolicySpan, ToolCall, new_message, new_policy_span, new_tool_call

_TEXT_TYPES = ("text", "input_text", "output_text")
_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
"""Roles by LangChain's message type."""


def prompt_messages(messages: Any) -> Iterable[Any]:
    """Return the messages of a prompt: a sequence, one message, one text, or None for none."""
    if messages is None:
        return ()
    is_single = isinstance(messages, str | Mapping) or callable(getattr(messages, "model_dump", None))
    return (messages,) if is_single else messages


def message_of(raw: Any, role: str = "user") -> Message:
    """Convert a dict or object in the shape of OpenAI's chat API, or a text of `role`, to a message.

    Items of OpenAI's Responses API and LangChain's messages, which have a `type` and no role, are converted, too.
    """
    raw = plain_data(raw)
    if not isinstance(raw, Mapping):
        return new_message(role=role, content=text_of(raw))
    if not raw.get("role"):
        raw = _with_role(raw, role)
    reasoning = raw.get("reasoning", raw.get("reasoning_content"))
    role, tool_call_id = text_of(raw["role"]), raw.get("tool_call_id")
    calls, function_call = raw.get("tool_calls") or [], raw.get("function_call")
    if isinstance(function_call, Mapping) and not calls:  # older form, with one call a message
        calls = [{**function_call, "id": function_call.get("name")}]
    if role == "function":
        role, tool_call_id = "tool", raw.get("name")
    return new_message(
        role=role,
        content=content_of(raw.get("content")) or text_of(raw.get("refusal")),
        tool_calls=[tool_call_of(call) for call in calls],
        tool_call_id=optional_text(tool_call_id),
        name=optional_text(raw.get("name")),
        reasoning=optional_text(reasoning),
    )


def _with_role(raw: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    kind = raw.get("type")
    if kind == "function_call":
        return {"role": "assistant", "tool_calls": [raw]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": raw.get("call_id"), "content": raw.get("output")}
    is_message = any(name in raw for name in ("content", "tool_calls", "function_call", "refusal"))
    return {**raw, "role": _ROLES.get(str(kind), role)} if is_message else {"role": role, "content": text_of(raw)}


def tool_call_of(raw: Any) -> ToolCall:
    """Convert a tool call in OpenAI's shape, or a flat one with `name`, `arguments` and `id` or `call_id`.

    The free text of a custom tool becomes the argument `input`.
    """
    raw = plain_data(raw)
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


def content_of(content: Any) -> str:
    """Return a message's content as text: joined if all parts are texts, else as JSON."""
    if isinstance(content, list) and all(
        isinstance(part, Mapping) and part.get("type") in _TEXT_TYPES for part in content
    ):
        return "".join([text_of(part.get("text")) for part in content])
    return text_of(content)


def optional_text(value: Any) -> str | None:
    """As `text_of`, but None stays None."""
    return None if value is None else text_of(value)


def text_of(value: Any) -> str:
    """Return a string unchanged, "" for None, and other values as JSON; values that JSON lacks as Python prints them.

    The result is valid Unicode: half of a surrogate pair becomes U+FFFD.
    """
    if isinstance(value, str):
        return value if value.isascii() else valid_text(value)
    if value is None:
        return ""
    try:
        return orjson.dumps(
            value, default=_json_default, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
        ).decode()
    except orjson.JSONEncodeError:  # integers above 64 bits, half of a surrogate pair
        pass
    try:
        return valid_text(json.dumps(value, default=_json_default, ensure_ascii=False, separators=(",", ":")))
    except Exception:  # a cycle, tuples as keys, or methods that raise
        return _printed(value)


def id_text(value: Any) -> str:
    """Return an identifier (text, number, UUID) as text."""
    text = str(value)
    return text if text.isascii() else valid_text(text)


def plain_data(value: Any) -> Any:
    """Convert a client library's object (anything with `model_dump`, as pydantic's) to plain data."""
    dump = getattr(value, "model_dump", None)
    return dump() if callable(dump) else value


def _json_default(value: Any) -> Any:
    data = plain_data(value)
    return data if data is not value else _printed(value)


def _printed(value: Any) -> str:
    try:
        return valid_text(repr(value))
    except Exception:
        return f"<{type(value).__name__}>"


def attach_results(response: Message, results: Iterable[ToolCall]) -> None:
    """Copy the tools' results to the response's calls; a result without a matching call becomes a new call."""
    for result in results:
        call = _matching_call(response["tool_calls"], result)
        if call is None:
            call_id = result["call_id"] or f"call_{uuid.uuid4().hex[:12]}"
            response["tool_calls"].append({**result, "call_id": call_id})
        else:
            call["result"], call["error"], call["duration_ms"] = (
                result["result"],
                result["error"],
                result["duration_ms"],
            )


def _matching_call(calls: Iterable[ToolCall], result: ToolCall) -> ToolCall | None:
    """Return the unanswered call with the result's id; without an id, with its arguments, else of its tool."""
    unanswered = [
        call
        for call in calls
        if call["name"] == result["name"]
        and call["result"] is None
        and call["error"] is None
        and not call["duration_ms"]
    ]
    if result["call_id"]:
        return next((call for call in unanswered if call["call_id"] == result["call_id"]), None)
    arguments = _without_spaces(result["arguments"])
    same = [call for call in unanswered if _without_spaces(call["arguments"]) == arguments]
    return next(iter(same or unanswered), None)


def _without_spaces(arguments: str) -> str:
    return "".join(arguments.split())


class SampledTokens:
    """Token ids of a sampled response and its whole prompt; given as lists, arrays or tensors of numbers."""

    def __init__(
        self,
        prompt: Iterable[int],
        response: Iterable[int],
        logprobs: Iterable[float],
        versions: Sequence[Mapping[str, Any]],
    ) -> None:
        """Raise ValueError, TypeError, KeyError or OverflowError if they are not numbers or their lengths differ."""
        self.prompt, self.response = _numbers("i", prompt), _numbers("i", response)
        self.logprobs = _numbers("d", logprobs)
        self.versions = [(int(span["start"]), int(span["end"]), int(span["version"])) for span in versions]
        ends = [0, *(end for _, end, _ in self.versions)]
        is_covered = ends[-1] == len(self.response) and [start for start, _, _ in self.versions] == ends[:-1]
        is_valid = is_covered and ends == sorted(ends) and all(version >= 0 for _, _, version in self.versions)
        if not self.response or len(self.response) != len(self.logprobs) or not is_valid:
            raise ValueError(
                f"{len(self.response)} tokens, {len(self.logprobs)} logprobs, versions {self.versions}: "
                "give one logprob for each token and a version of at least 0"
            )

    def spans(self, model: str) -> list[PolicySpan]:
        """Return the spans of tokens that one policy version sampled."""
        return [
            new_policy_span(start=start, end=end, model=model, version=version)
            for start, end, version in self.versions
            if end > start
        ]


def whole_response(count: int, version: int) -> list[dict[str, Any]]:
    """Return the span of a response that one version sampled; empty: unknown version."""
    return [{"start": 0, "end": count, "version": version}] if version >= 0 else []


def _numbers(code: str, values: Any) -> list[Any]:
    """Return a list of Python's numbers, checked against a type code of `array`."""
    tolist = getattr(values, "tolist", None)
    return array(code, tolist() if callable(tolist) else values).tolist()
