"""Which call of a response a tool's result belongs to. Pure."""

import uuid
from collections.abc import Iterable

from stepstream.topics.events import Message, ToolCall


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
