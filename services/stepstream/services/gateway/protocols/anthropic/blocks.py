"""Anthropic's content blocks as messages of the log.

A reply that is recorded and the same reply as it comes back in the next request must become equal messages, or the
prompt would look new: so decorations (`cache_control`, citations, signatures) are left out, and a tool's input is
written by one rule.
"""

from typing import Any

from stepstream.services.gateway.protocols.messages import content_text, json_text, text
from stepstream.topics.events import Message, ToolCall, new_message, new_tool_call

INVALID_JSON = "INVALID_JSON"
"""The one key of the `input` that stands for arguments which are no JSON object: Anthropic's own convention."""


def prompt_messages(request: dict[str, Any]) -> list[Message]:
    """The whole prompt of a request; what is malformed is kept as JSON text."""
    system, turns = request.get("system"), request.get("messages")
    messages = [new_message(role="system", content=block_text(system))] if system else []
    for turn in turns if isinstance(turns, list) else ():
        messages += _turn(turn)
    return messages


def assistant_message(content: Any) -> Message:
    """What the model said in a list of blocks, or in a string.

    Tools that the provider runs itself (`server_tool_use`, `mcp_tool_use`) are tool calls whose result is known.
    """
    if not isinstance(content, list):
        return new_message(role="assistant", content=text(content))
    parts: list[Any] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    by_id: dict[str, ToolCall] = {}
    for block in content:
        kind = text(block.get("type")) if isinstance(block, dict) else ""
        if kind == "thinking":
            thoughts.append(text(block.get("thinking")))
        elif kind == "redacted_thinking":
            thoughts.append(json_text(_bare(block)))
        elif kind.endswith("tool_use"):
            calls.append(_tool_call(block))
            by_id[calls[-1]["call_id"]] = calls[-1]
        elif kind.endswith("tool_result") and (answered := by_id.get(text(block.get("tool_use_id")))) is not None:
            answered["result"], answered["error"] = _server_result(block)
        elif not _is_text(block) or block["text"]:
            parts.append(block)
    reasoning = "\n".join([thought for thought in thoughts if thought])
    return new_message(role="assistant", content=block_text(parts), tool_calls=calls, reasoning=reasoning or None)


def block_text(content: Any) -> str:
    """Blocks or a string as text; blocks that are not text as JSON, without decorations."""
    return content_text([_bare(block) for block in content] if isinstance(content, list) else content)


def result_text(block: dict[str, Any]) -> str:
    """What a `tool_result` says; a failed one begins with `Error`, as no message has a field for that."""
    said = block_text(block.get("content"))
    return f"Error: {said}" if block.get("is_error") is True and not said.lower().startswith("error") else said


def arguments_text(tool_input: Any) -> str:
    """A tool's input as JSON text, compact, in the order in which the model wrote it."""
    if isinstance(tool_input, dict) and len(tool_input) == 1 and isinstance(tool_input.get(INVALID_JSON), str):
        return str(tool_input[INVALID_JSON])
    return "{}" if tool_input is None else text(tool_input)


def _turn(raw: Any) -> list[Message]:
    if not isinstance(raw, dict):
        return [new_message(role="user", content=json_text(raw))]
    role, content = text(raw.get("role")) or "user", raw.get("content")
    if role == "assistant":
        return [assistant_message(content)]
    if not isinstance(content, list):
        return [new_message(role=role, content=text(content))]
    results = [block for block in content if isinstance(block, dict) and block.get("type") == "tool_result"]
    messages = [
        new_message(role="tool", content=result_text(block), tool_call_id=text(block.get("tool_use_id")))
        for block in results
    ]
    if len(results) < len(content) or not content:
        rest = [block for block in content if not any(block is result for result in results)]
        messages.append(new_message(role=role, content=block_text(rest)))
    return messages


def _tool_call(block: dict[str, Any]) -> ToolCall:
    return new_tool_call(
        call_id=text(block.get("id")), name=text(block.get("name")), arguments=arguments_text(block.get("input"))
    )


def _server_result(block: dict[str, Any]) -> tuple[str, str | None]:
    content = block.get("content")
    error = content.get("error_code") if isinstance(content, dict) else None
    if error is None and block.get("is_error") is True:
        error = "tool_error"
    told = content if isinstance(content, list) else [content] if content is not None else []
    return block_text(told), None if error is None else text(error)


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)


def _bare(block: Any) -> Any:
    if isinstance(block, list):
        return [_bare(item) for item in block]
    if not isinstance(block, dict):
        return block
    if _is_text(block):
        return {"type": "text", "text": block["text"]}
    return {
        name: _bare(value) if name in ("content", "source") else value
        for name, value in block.items()
        if value is not None and name != "cache_control"
    }
