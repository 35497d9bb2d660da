"""Apply a harness version to the request of a call, in the protocol of its caller. Pure.

Instructions replace the leading system messages, examples follow them, and tools are removed or described anew. A part
of a request with another shape than its protocol's stays unchanged, since the upstream has to reject it. The gateway
applies the versions that serve; optimisers apply candidates in the same way.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal
from urllib.parse import urlencode

from stepstream.core import lenient_json
from stepstream.datasets.messages import content_of, to_chat
from stepstream.topics.events import Harness, HarnessExample, HarnessTool, Message
from stepstream.versions.nearest_examples import index_of

Request = dict[str, Any]


def with_harness(protocol: Literal["chat", "anthropic", "responses"], request: Request, harness: Harness) -> Request:
    """Return the request with the harness in force; the argument does not change."""
    changed = _BY_PROTOCOL[protocol](dict(request), harness)
    if harness["model"] is not None:
        changed["model"] = harness["model"]
    if isinstance(changed.get("tools"), list):
        _change_tools(changed, {tool["name"]: tool for tool in harness["tools"]})
    return changed


def tool_versions(harness: Harness) -> str:
    """Return the offered tools with a pinned version, as `name=version&…` with percent encoding; empty: none.

    The agent runs its tools, so no request can pin one: the agent gets this text and calls these versions.
    """
    return urlencode(
        [(tool["name"], tool["version"]) for tool in harness["tools"] if tool["version"] and tool["enabled"]]
    )


def _chat(request: Request, harness: Harness) -> Request:
    messages = request.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return request
    leading = 0
    while leading < len(messages) and messages[leading].get("role") in ("system", "developer"):
        leading += 1
    first = messages[:leading]
    if harness["instructions"] is not None:
        role = messages[0]["role"] if leading else "system"
        first = [{"role": role, "content": harness["instructions"]}]
    request["messages"] = [*first, *map(to_chat, _examples(harness, messages)), *messages[leading:]]
    return request


def _anthropic(request: Request, harness: Harness) -> Request:
    if harness["instructions"] is not None:
        request["system"] = harness["instructions"]
    messages = request.get("messages")
    if isinstance(messages, list):
        request["messages"] = [*map(_anthropic_turn, _examples(harness, messages)), *messages]
    return request


def _anthropic_turn(message: Message) -> Request:
    if message["role"] == "tool":
        block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return {"role": "user", "content": [block]}
    if not message["tool_calls"]:
        return {"role": message["role"], "content": message["content"]}
    blocks: list[Request] = [{"type": "text", "text": message["content"]}] if message["content"] else []
    for call in message["tool_calls"]:
        arguments = lenient_json.loads(call["arguments"].encode())
        blocks.append({"type": "tool_use", "id": call["call_id"], "name": call["name"], "input": arguments})
    return {"role": "assistant", "content": blocks}


def _responses(request: Request, harness: Harness) -> Request:
    if harness["instructions"] is not None:
        request["instructions"] = harness["instructions"]
    if request.get("previous_response_id"):
        return request  # the response that it continues was given with the examples
    sent = request.get("input")
    items = [{"role": "user", "content": sent}] if isinstance(sent, str) else sent
    if isinstance(items, list) and harness["examples"]:
        request["input"] = [*(one for each in _examples(harness, items) for one in _response_items(each)), *items]
    return request


def _response_items(message: Message) -> list[Request]:
    if message["role"] == "tool":
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}]
    items: list[Request] = []
    if message["content"]:
        items.append({"role": message["role"], "content": message["content"]})
    for call in message["tool_calls"]:
        fields = {"call_id": call["call_id"], "name": call["name"], "arguments": call["arguments"]}
        items.append({"type": "function_call", **fields})
    return items


def _examples(harness: Harness, conversation: list[Any]) -> Iterable[Message]:
    """Return the turns of the examples that a conversation gets: the same at each of its steps."""
    examples, shown = harness["examples"], harness["examples_shown"]
    if 0 < shown < len(examples):
        index = index_of(tuple(map(first_request, examples)))
        examples = [examples[i] for i in index.nearest(_first_request(conversation), shown)]
    return (message for example in examples for message in example["messages"])


def first_request(example: HarnessExample) -> str:
    """Return the text of an example that conversations are compared with: its first user message."""
    return next((message["content"] for message in example["messages"] if message["role"] == "user"), "")


def _first_request(conversation: list[Any]) -> str:
    """Return the first user message with text in any protocol; empty: none."""
    for message in conversation:
        if (
            isinstance(message, dict)
            and message.get("role") == "user"
            and (text := content_of(message.get("content"), set()))
        ):
            return text
    return ""


def _change_tools(request: Request, changes: dict[str, HarnessTool]) -> None:
    """Remove and describe offered tools; a choice of a removed tool is left out."""
    choice = request.get("tool_choice")
    removed = {name for name, change in changes.items() if not change["enabled"]}
    offered = [tool for tool in request["tools"] if _name(tool) not in removed]
    if not offered or (isinstance(choice, dict) and _name(choice) in removed):
        request.pop("tool_choice", None)
    if not offered:
        del request["tools"]
        return
    request["tools"] = [_described(tool, changes.get(_name(tool))) for tool in offered]


def _name(tool: Any) -> str:
    """Return the name of a tool in any protocol; empty: it has none."""
    holder = tool.get("function", tool) if isinstance(tool, dict) else None
    name = holder.get("name") if isinstance(holder, dict) else None
    return name if isinstance(name, str) else ""


def _described(tool: Any, change: HarnessTool | None) -> Any:
    if change is None or change["description"] is None:
        return tool
    if isinstance(tool.get("function"), dict):
        return {**tool, "function": {**tool["function"], "description": change["description"]}}
    return {**tool, "description": change["description"]}


_BY_PROTOCOL: dict[str, Callable[[Request, Harness], Request]] = {
    "chat": _chat,
    "anthropic": _anthropic,
    "responses": _responses,
}
