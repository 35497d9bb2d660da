"""Translate a request of the Responses API to a chat completion, or name the reason why not. Pure."""

from collections.abc import Sequence
from typing import Any

from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.protocols.base import History
from stepstream.services.gateway.protocols.messages import text
from stepstream.services.gateway.protocols.responses.items import Raw, chat_messages

_HANDLED = frozenset(
    {"input", "instructions", "max_output_tokens", "parallel_tool_calls", "previous_response_id", "reasoning", "stream"}
    | {"stream_options", "text", "tool_choice", "tools", "top_logprobs", "include"}
)
_DROPPED = frozenset(
    {"access_programs", "background_options", "context_management", "image", "max_tool_calls", "metadata", "store"}
    | {"truncation"}
)
"""Fields about storage, billing or truncation, which chat completions lack."""
_UNSUPPORTED = {
    # field: remedy
    "background": "ask without `background` and wait for the answer",
    "conversation": "send the conversation as `input`, or continue a response with `previous_response_id`",
    "moderation": "ask for moderation in a call of its own",
    "prompt": "send the prompt itself as `instructions` and `input`",
}
_FREE_TEXT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Parameters of the function that replaces a custom tool."""


def chat_request(request: Raw, items: Sequence[Any], history: History | None) -> Raw:
    """Return the body for `/v1/chat/completions`.

    Args:
        request: the call.
        items: its input, references resolved.
        history: conversation of its `previous_response_id`.

    Raises:
        BadRequest: a chat completion cannot do it; the message names a remedy.
    """
    for name, remedy in _UNSUPPORTED.items():
        if request.get(name):
            raise _unsupported(f"'{name}'", remedy)
    out: Raw = {
        name: value
        for name, value in request.items()
        if value is not None and name not in _HANDLED and name not in _DROPPED and name not in _UNSUPPORTED
    }
    out["messages"] = _messages(request, items, history)
    if request.get("max_output_tokens") is not None:
        out["max_completion_tokens"] = request["max_output_tokens"]
    _set_tools(out, request)
    _set_text(out, request)
    if wants_logprobs(request):
        out["logprobs"] = True
        if request.get("top_logprobs"):
            out["top_logprobs"] = request["top_logprobs"]
    if request.get("stream") is True:
        out |= {"stream": True, "stream_options": {"include_usage": True}}
    return out


def wants_logprobs(request: Raw) -> bool:
    """Return True if the caller requests logprobs of the text."""
    include = request.get("include")
    listed = isinstance(include, list) and "message.output_text.logprobs" in include
    return listed or bool(request.get("top_logprobs"))


def custom_tools(request: Raw) -> frozenset[str]:
    """Return the names of tools that take free text; the chat request has functions of one argument for them."""
    return frozenset(text(tool.get("name")) for tool in _listed(request) if tool.get("type") == "custom")


def _messages(request: Raw, items: Sequence[Any], history: History | None) -> list[Raw]:
    previous = request.get("previous_response_id")
    if previous and history is None:
        raise BadRequest(f"previous_response_id '{previous}' is not known here; send the whole conversation as `input`")
    for item in items:
        if isinstance(item, dict) and item.get("type") == "item_reference":
            raise BadRequest(f"the item '{item.get('id')}' is not known here; send items whole (`store: false`)")
    instructions = chat_messages(instruction_items(request))
    new = chat_messages(items)
    for feature in instructions.unsupported + new.unsupported:
        raise _unsupported(feature, "leave them out, or choose a model whose upstream speaks the Responses API")
    messages = [*instructions.messages, *(history.messages if history else ()), *new.messages]
    # Chat templates of open models handle `system`; many silently drop `developer`.
    return [message | {"role": "system"} if message["role"] == "developer" else message for message in messages]


def instruction_items(request: Raw) -> list[Any]:
    """Return a request's `instructions` as items."""
    instructions = request.get("instructions")
    if isinstance(instructions, list):
        return instructions
    return [] if instructions is None else [{"role": "system", "content": instructions}]


def _set_tools(out: Raw, request: Raw) -> None:
    tools = [_tool(tool) for tool in _listed(request)]
    choice = request.get("tool_choice")
    if isinstance(choice, dict):
        kind = choice.get("type")
        if kind in ("function", "custom"):
            choice = {"type": "function", "function": {"name": choice.get("name")}}
        elif kind == "allowed_tools" and isinstance(choice.get("tools"), list):
            allowed = [tool.get("name") for tool in choice["tools"] if isinstance(tool, dict)]
            tools = [tool for tool in tools if tool["function"]["name"] in allowed]
            choice = choice.get("mode")
        else:
            raise _unsupported(f"tool_choice of type '{kind}'", "choose `auto`, `none`, `required` or a function")
    if not tools:
        return
    out["tools"] = tools
    if choice is not None:
        out["tool_choice"] = choice
    if request.get("parallel_tool_calls") is not None:
        out["parallel_tool_calls"] = request["parallel_tool_calls"]


def _listed(request: Raw) -> list[Raw]:
    tools = request.get("tools")
    return [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []


def _tool(tool: Raw) -> Raw:
    kind = tool.get("type")
    function: Raw = {"name": text(tool.get("name"))}
    if kind == "function":
        fields = ("description", "parameters", "strict")
        function |= {name: tool[name] for name in fields if tool.get(name) is not None}
    elif kind == "custom":
        function |= {"description": _custom_description(tool), "parameters": _FREE_TEXT}
    else:
        raise _unsupported(
            f"the built-in tool '{kind}'", "give the model a function that does it, or choose a model of its provider"
        )
    return {"type": "function", "function": function}


def _custom_description(tool: Raw) -> str:
    description = text(tool.get("description"))
    form = tool.get("format")
    if isinstance(form, dict) and form.get("type") == "grammar":
        rule = f"The input must follow this {form.get('syntax')} grammar:\n{form.get('definition')}"
        description = f"{description}\n{rule}".strip()
    return description


def _set_text(out: Raw, request: Raw) -> None:
    reasoning = request.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        out["reasoning_effort"] = reasoning["effort"]
    text_options = request.get("text")
    if not isinstance(text_options, dict):
        return
    if text_options.get("verbosity") is not None:
        out["verbosity"] = text_options["verbosity"]
    form = text_options.get("format")
    if not isinstance(form, dict) or form.get("type") == "text":
        return
    if form.get("type") == "json_schema":
        schema = {
            name: form[name] for name in ("name", "description", "schema", "strict") if form.get(name) is not None
        }
        form = {"type": "json_schema", "json_schema": schema}
    out["response_format"] = form


def _unsupported(feature: str, remedy: str) -> BadRequest:
    return BadRequest(f"{feature}: this model's upstream speaks only chat completions, which lack it; {remedy}")
