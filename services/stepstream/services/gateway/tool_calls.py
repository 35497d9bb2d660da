"""The tools that an agent was offered: their definitions, and calls of others. Pure."""

from typing import Any

import orjson

from stepstream.topics.events import Message

UNKNOWN_TOOL = "unknown_tool"
"""Error of a call that names no tool on offer: the call is malformed, no tool has failed."""


def checked(message: Message, tools: Any) -> Message:
    """The response with the error of such calls; as it is where all are known, or where it cannot be told.

    Args:
        message: what the model answered.
        tools: on offer, as a chat completion request tells them; None: not known.
    """
    if not message["tool_calls"] or not isinstance(tools, list):
        return message
    offered = {_name(tool) for tool in tools}
    if None in offered or all(call["name"] in offered for call in message["tool_calls"]):
        return message
    calls = [call.copy() for call in message["tool_calls"]]
    for call in calls:
        if call["name"] not in offered:
            call["error"] = UNKNOWN_TOOL
    return {**message, "tool_calls": calls}


def definitions(tools: Any) -> tuple[bytes, int]:
    """The tools on offer as JSON, and its hash, to compare them by in this process; empty and 0 where there are none.

    Python's own hash is keyed, and costs a quarter of a cryptographic digest: this is done for each call.
    """
    if not tools:
        return b"", 0
    text = orjson.dumps(tools)
    return text, hash(text) or 1


def _name(tool: Any) -> str | None:
    """Name of a tool on offer; None for one whose calls have names of their own, as those that a provider runs."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    said = tool.get(kind) if isinstance(kind, str) else None
    name = said.get("name") if isinstance(said, dict) else None
    return name if isinstance(name, str) else None
