"""Read messages in OpenAI's form and return them in the form of chat templates."""

from typing import Any

import orjson

from stepstream.services.inference.chat_template import Message
from stepstream.services.inference.request_fields import RequestError

_ROLES = ("assistant", "developer", "system", "tool", "user")
_PASSED_ON = ("tool_call_id", "name", "reasoning_content", "reasoning")
_REFUSED = ("function_call", "audio")
"""Fields with a part of the conversation that no template of these models renders."""


def read_messages(messages: Any) -> list[Message]:
    """Return messages in the form of chat templates; raises RequestError if they are not in OpenAI's form."""
    if not isinstance(messages, list) or not messages:
        raise RequestError(400, "'messages' must be a list with at least one message", param="messages")
    return [_message(index, message) for index, message in enumerate(messages)]


def _message(index: int, message: Any) -> Message:
    """Return a message in the form of chat templates: content as text, a call's arguments as an object."""
    param = f"messages[{index}]"
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise RequestError(400, f"{param}: 'role' must be one of {', '.join(_ROLES)}", param=param)
    for name in _REFUSED:
        if message.get(name):
            raise RequestError(400, f"{param}: '{name}' is not supported: send text and 'tool_calls'", param=param)
    role, content = message["role"], message.get("content")
    if isinstance(content, list):
        try:
            content = "".join(part["text"] for part in content)
        except (TypeError, KeyError) as error:
            raise RequestError(400, f"{param}: only text content is supported", param=param) from error
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise RequestError(400, f"{param}: 'tool_calls' must be a list", param=param)
    if not isinstance(content, str) and not (content is None and role == "assistant"):
        raise RequestError(400, f"{param}: 'content' must be text", param=param)
    if role == "developer":
        role = "system"
    fields: Message = {"role": role, "content": content}
    for name in _PASSED_ON:
        if message.get(name) is not None:
            if not isinstance(message[name], str):
                raise RequestError(400, f"{param}: '{name}' must be text", param=param)
            fields[name] = message[name]
    return fields | {"tool_calls": [_call(param, call) for call in calls]} if calls else fields


def _call(param: str, call: Any) -> dict[str, Any]:
    try:
        function = call["function"]
        arguments = function["arguments"]
        if isinstance(arguments, str):
            arguments = orjson.loads(arguments)
        function = {"name": function["name"], "arguments": arguments}
        return {"id": call.get("id"), "type": "function", "function": function}
    except (TypeError, KeyError, AttributeError, orjson.JSONDecodeError) as error:
        raise RequestError(
            400, f"{param}: a tool call must have function.name and JSON function.arguments", param=param
        ) from error
