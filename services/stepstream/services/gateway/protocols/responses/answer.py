"""Read the answer of the Responses API, whole or from the events of a stream. Pure."""

from typing import Any

from stepstream.services.gateway.protocols.base import Answer
from stepstream.services.gateway.protocols.messages import count
from stepstream.services.gateway.protocols.responses.items import Raw, assistant_message, calls_tools, referable_items
from stepstream.topics.events import new_message

_LAST = ("response.completed", "response.incomplete", "response.failed")
_UNFINISHED = ("queued", "in_progress")
_DELTAS: dict[Any, tuple[str, str, str | None, str]] = {
    "response.output_text.delta": ("message", "content", "output_text", "text"),
    "response.refusal.delta": ("message", "content", "refusal", "refusal"),
    "response.reasoning_text.delta": ("reasoning", "content", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("reasoning", "summary", "summary_text", "text"),
    "response.function_call_arguments.delta": ("function_call", "arguments", None, ""),
    "response.custom_tool_call_input.delta": ("custom_tool_call", "input", None, ""),
}
"""Events with output of the model: type of the item, its field, type of the part in it, and the part's field."""


def answer_of(response: Raw) -> Answer:
    """Return the answer in a `response` object; a failed one keeps its output."""
    output = response.get("output")
    if not isinstance(output, list):
        failure = error_name(response["error"]) if response.get("error") else "malformed_response"
        return Answer(new_message(role="assistant"), finish_reason="error", error=failure)
    reason, error = _ending(response, output)
    usage = response.get("usage")
    used = usage if isinstance(usage, dict) else {}
    return Answer(
        message=assistant_message(output),
        model=_string(response.get("model")),
        finish_reason=reason,
        response_id=_string(response.get("id")),
        error=error,
        usage_prompt_tokens=count(used.get("input_tokens")),
        usage_response_tokens=count(used.get("output_tokens")),
        items=referable_items(output),
    )


def error_name(error: Any) -> str:
    """Return the class of an error object or event: its type or code."""
    if isinstance(error, dict):
        inner = error.get("error")
        details = inner if isinstance(inner, dict) else error
        kinds = (details.get("type"), details.get("code"))
        return next((kind for kind in kinds if isinstance(kind, str) and kind not in ("", "error")), "server_error")
    return "server_error"


def _ending(response: Raw, output: list[Any]) -> tuple[str, str | None]:
    """Return finish reason and error."""
    status = response.get("status")
    if status == "failed" or response.get("error"):
        return "error", error_name(response.get("error"))
    if status == "cancelled":
        return "error", "cancelled"
    if status in _UNFINISHED:  # a background response, which the caller fetches later without the gateway
        return "error", "background_response"
    if status == "incomplete":
        details = response.get("incomplete_details")
        filtered = isinstance(details, dict) and details.get("reason") == "content_filter"
        return "content_filter" if filtered else "length", None
    return "tool_calls" if calls_tools(output) else "stop", None


class ResponseStream:
    """Collects the events of one stream; a final `response` overrides the deltas."""

    def __init__(self) -> None:
        self._items: dict[int, Raw] = {}
        self._done: set[int] = set()
        self._deltas: dict[tuple[int, str, int], list[str]] = {}
        self._response: Raw = {}
        self._ended = False
        self._error: str | None = None

    def add(self, event: dict[str, Any]) -> bool:
        """Add one event; return True if it contains output of the model."""
        kind = event.get("type")
        if kind in _DELTAS:
            return self._delta(event)
        response = event.get("response")
        if isinstance(response, dict):
            self._response = response
            self._ended = kind in _LAST
        elif kind == "error" or (kind is None and "error" in event):
            self._error = error_name(event)
        elif kind in ("response.output_item.added", "response.output_item.done"):
            index, item = event.get("output_index"), event.get("item")
            if isinstance(index, int) and isinstance(item, dict):
                self._items[index] = item
                if kind == "response.output_item.done":
                    self._done.add(index)
        return False

    def answer(self) -> Answer:
        """Return the answer so far; before the end, without finish reason or error."""
        response = self._response
        if not response.get("output"):
            response = response | {"output": self._collected()}
        if not self._ended:
            response = response | {"status": None, "error": None}
        answer = answer_of(response)
        if not self._ended:
            answer.finish_reason = ""
        if self._error is not None:
            answer.error, answer.finish_reason = answer.error or self._error, "error"
        return answer

    def _delta(self, event: Raw) -> bool:
        delta = event.get("delta")
        if not isinstance(delta, str) or not delta:
            return False
        part = event["content_index"] if "content_index" in event else event.get("summary_index")
        key = _index(event.get("output_index")), event["type"], _index(part)
        self._deltas.setdefault(key, []).append(delta)
        return True

    def _collected(self) -> list[Raw]:
        """Return the items so far: completed ones, and others built from their deltas."""
        items = {index: dict(item) for index, item in self._items.items()}
        parts: dict[tuple[int, str], list[tuple[int, Raw]]] = {}
        for (index, kind, part), deltas in self._deltas.items():
            if index in self._done:
                continue
            item_type, item_field, part_type, part_field = _DELTAS[kind]
            item = items.setdefault(index, {"type": item_type, "role": "assistant"})
            if part_type is None:
                item[item_field] = "".join(deltas)
            else:
                new_part = {"type": part_type, part_field: "".join(deltas)}
                parts.setdefault((index, item_field), []).append((part, new_part))
        for (index, item_field), numbered in parts.items():
            items[index][item_field] = [raw for _, raw in sorted(numbered, key=lambda part: part[0])]
        return [items[index] for index in sorted(items)]


def _index(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
