"""The answer in a response of the Responses API: whole, or spelled by the events of a stream."""

from typing import Any

from stepstream.services.gateway.protocols.base import Answer
from stepstream.services.gateway.protocols.messages import count
from stepstream.services.gateway.protocols.responses.items import Raw, assistant_message, calls_tools, nameable
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
"""Events in which the model speaks: the item, the field of it, the part in that field, and the part's field."""


def answer_of(response: Raw) -> Answer:
    """The answer in a `response` object; what there is of one that failed is kept."""
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
        items=nameable(output),
    )


def error_name(error: Any) -> str:
    """The class of an error object or event: its type or code."""
    if isinstance(error, dict):
        inner = error.get("error")
        found = inner if isinstance(inner, dict) else error
        kinds = (found.get("type"), found.get("code"))
        return next((kind for kind in kinds if isinstance(kind, str) and kind not in ("", "error")), "server_error")
    return "server_error"


def _ending(response: Raw, output: list[Any]) -> tuple[str, str | None]:
    """Finish reason and error."""
    status = response.get("status")
    if status == "failed" or response.get("error"):
        return "error", error_name(response.get("error"))
    if status == "cancelled":
        return "error", "cancelled"
    if status in _UNFINISHED:  # one that runs in the background: the caller asks for it later, past us
        return "error", "background_response"
    if status == "incomplete":
        details = response.get("incomplete_details")
        filtered = isinstance(details, dict) and details.get("reason") == "content_filter"
        return "content_filter" if filtered else "length", None
    return "tool_calls" if calls_tools(output) else "stop", None


class ResponseStream:
    """Gathers a stream's events; the final `response` counts where it comes, else what was said so far."""

    def __init__(self) -> None:
        self._items: dict[int, Raw] = {}
        self._done: set[int] = set()
        self._deltas: dict[tuple[int, str, int], list[str]] = {}
        self._response: Raw = {}
        self._ended = False
        self._error: str | None = None

    def add(self, event: dict[str, Any]) -> bool:
        """Takes in one event; True if the model said something in it."""
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
        """What has been said so far; without a finish reason or error if the end has not come."""
        response = self._response
        if not response.get("output"):
            response = response | {"output": self._gathered()}
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

    def _gathered(self) -> list[Raw]:
        """The items as far as they have come: whole ones as they are, others from their deltas."""
        items = {index: dict(item) for index, item in self._items.items()}
        parts: dict[tuple[int, str], list[tuple[int, Raw]]] = {}
        for (index, kind, part), deltas in self._deltas.items():
            if index in self._done:
                continue
            item_type, where, part_type, name = _DELTAS[kind]
            item = items.setdefault(index, {"type": item_type, "role": "assistant"})
            if part_type is None:
                item[where] = "".join(deltas)
            else:
                parts.setdefault((index, where), []).append((part, {"type": part_type, name: "".join(deltas)}))
        for (index, where), found in parts.items():
            items[index][where] = [raw for _, raw in sorted(found, key=lambda part: part[0])]
        return [items[index] for index in sorted(items)]


def _index(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
