"""Convert Anthropic's content blocks to messages of the log. Pure.

A recorded reply and the same reply in the next request must become equal messages, or the prompt would look new.
Therefore `cache_control`, citations and signatures are left out, and a tool's input is always serialised the same way.
"""

from typing import Any

from stepstream.services.gateway.protocols.messages import content_text, json_text, text
from stepstream.topics.events import Message, ToolCall, new_message, new_tool_call

INVALID_JSON = "INVALID_JSON"
"""The single key of an `input` whose arguments were not a JSON object: Anthropic's convention."""


def prompt_messages(request: dict[str, Any]) -> list[Message]:
    """Return the whole prompt of a request; malformed parts become JSON text."""
    system, turns = request.get("system"), request.get("messages")
    messages = [new_message(role="system", content=block_text(system))] if system else []
    for turn in turns if isinstance(turns, list) else ():
        messages += _turn(turn)
    return messages


def assistant_message(content: Any) -> Message:
    """Return the message in a list of blocks, or in a string.

    Tools that the provider runs itself (`server_tool_use`, `mcp_tool_use`) become tool calls with their result.
    """
    if not isinstance(content, list):
        return new_message(role="assistant", content=text(content))
    parts: list[Any] = []
    thinking: list[str] = []
    calls: list[ToolCall] = []
    by_id: dict[str, ToolCall] = {}
    for block in content:
        kind = text(block.get("type")) if isinstance(block, dict) else ""
        if kind == "thinking":
            thinking.append(text(block.get("thinking")))
        elif kind == "redacted_thinking":
            thinking.append(json_text(_undecorated(block)))
        elif kind.endswith("tool_use"):
            calls.append(_tool_call(block))
            by_id[calls[-1]["call_id"]] = calls[-1]
        elif kind.endswith("tool_result") and (call := by_id.get(text(block.get("tool_use_id")))) is not None:
            call["result"], call["error"] = _server_result(block)
        elif not _is_text(block) or block["text"]:
            parts.append(block)
    reasoning = "\n".join([part for part in thinking if part])
    return new_message(role="assistant", content=block_text(parts), tool_calls=calls, reasoning=reasoning or None)


def block_text(content: Any) -> str:
    """Return blocks or a string as text; with blocks of other types, as JSON without decorations."""
    return content_text([_undecorated(block) for block in content] if isinstance(content, list) else content)


def result_text(block: dict[str, Any]) -> str:
    """Return the text of a `tool_result`; a failed one begins with `Error`, since messages have no such field."""
    result = block_text(block.get("content"))
    is_marked = result.lower().startswith("error")
    return f"Error: {result}" if block.get("is_error") is True and not is_marked else result


def arguments_text(tool_input: Any) -> str:
    """Return a tool's input as compact JSON, in the model's order."""
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
    blocks = content if isinstance(content, list) else [content] if content is not None else []
    return block_text(blocks), None if error is None else text(error)


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)


def _undecorated(block: Any) -> Any:
    if isinstance(block, list):
        return [_undecorated(item) for item in block]
    if not isinstance(block, dict):
        return block
    if _is_text(block):
        return {"type": "text", "text": block["text"]}
    return {
        name: _undecorated(value) if name in ("content", "source") else value
        for name, value in block.items()
        if value is not None and name != "cache_control"
    }
