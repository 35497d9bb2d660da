"""Translate a request of Anthropic's Messages API to a chat completion. Pure."""

from typing import Any

from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.protocols.anthropic.blocks import result_text
from stepstream.services.gateway.protocols.messages import json_text, text

_UNCHANGED = ("model", "max_tokens", "temperature", "top_p", "top_k")
_ANTHROPIC_ONLY = ("mcp_servers", "container")
_REMEDY = "leave it out, or name a model of an upstream that speaks Anthropic's Messages"

Chat = dict[str, Any]


def chat_request(request: dict[str, Any]) -> Chat:
    """Return the body for `/v1/chat/completions`.

    Redacted thinking, prompt caching and service tiers are dropped: the answer is still valid without them.

    Raises:
        BadRequest: a chat completion cannot express some of it.
    """
    for name in _ANTHROPIC_ONLY:
        if request.get(name):
            raise _unsupported(f"'{name}'")
    chat: Chat = {name: request[name] for name in _UNCHANGED if request.get(name) is not None}
    chat["messages"] = _messages(request)
    if tools := _list(request, "tools"):
        chat["tools"] = [_tool(tool) for tool in tools]
    _set_tool_choice(chat, request.get("tool_choice"))
    if stops := _list(request, "stop_sequences"):
        chat["stop"] = stops
    if (response_format := _format(request)) is not None:
        chat["response_format"] = response_format
    metadata = request.get("metadata")
    if isinstance(metadata, dict) and metadata.get("user_id") is not None:
        chat["user"] = metadata["user_id"]
    if request.get("stream") is True:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return chat


def _messages(request: dict[str, Any]) -> list[Chat]:
    system, turns = request.get("system"), request.get("messages")
    if not isinstance(turns, list) or not turns:
        raise BadRequest("'messages' must be a list with at least one message")
    messages = [{"role": "system", "content": _content(_parts(system, "system"))}] if system else []
    for index, turn in enumerate(turns):
        where = f"messages[{index}]"
        role = turn.get("role") if isinstance(turn, dict) else None
        if role == "user":
            messages += _user(turn.get("content"), where)
        elif role == "assistant":
            messages.append(_assistant(turn.get("content"), where))
        elif role == "system":
            messages.append({"role": "system", "content": _content(_parts(turn.get("content"), where))})
        else:
            raise BadRequest(f"{where}: 'role' must be user, assistant or system")
    if messages[-1]["role"] == "assistant":
        raise _unsupported("an answer that continues a last message of the assistant (prefill)")
    return messages


def _user(content: Any, where: str) -> list[Chat]:
    """Return tool results first, since chat completions require them after the calls; their images come last."""
    results: list[Chat] = []
    parts: list[Chat] = []
    for block in _blocks(content, where):
        if block.get("type") == "tool_result":
            inner = _parts(block.get("content"), where)
            result = {
                "content": "".join([part["text"] for part in inner if part["type"] == "text"]),
                "is_error": block.get("is_error"),
            }
            results.append(
                {"role": "tool", "tool_call_id": text(block.get("tool_use_id")), "content": result_text(result)}
            )
            parts += [part for part in inner if part["type"] != "text"]
        else:
            parts.append(_part(block, where))
    return [*results, {"role": "user", "content": _content(parts)}] if parts or not results else results


def _assistant(content: Any, where: str) -> Chat:
    texts: list[str] = []
    thinking: list[str] = []
    calls: list[Chat] = []
    for block in _blocks(content, where):
        kind = block.get("type")
        if kind == "tool_use":
            value = block.get("input")
            function = {"name": text(block.get("name")), "arguments": json_text({} if value is None else value)}
            calls.append({"id": text(block.get("id")), "type": "function", "function": function})
        elif kind == "text":
            texts.append(text(block.get("text")))
        elif kind == "thinking":
            thinking.append(text(block.get("thinking")))
        elif kind != "redacted_thinking":
            raise _unsupported(f"{where}: a block of type '{kind}'")
    answer = "".join(texts)
    message: Chat = {"role": "assistant", "content": answer or (None if calls else "")}
    if reasoning := "\n".join([part for part in thinking if part]):
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _parts(content: Any, where: str) -> list[Chat]:
    return [_part(block, where) for block in _blocks(content, where)]


def _blocks(content: Any, where: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if content is None:
        return []
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise BadRequest(f"{where}: 'content' must be a string or a list of blocks")
    return content


def _part(block: dict[str, Any], where: str) -> Chat:
    kind, source = block.get("type"), block.get("source")
    source_type = source.get("type") if isinstance(source, dict) else None
    if kind == "text":
        return {"type": "text", "text": text(block.get("text"))}
    if isinstance(source, dict) and kind == "image" and source_type == "url":
        return {"type": "image_url", "image_url": {"url": text(source.get("url"))}}
    if isinstance(source, dict) and kind == "image" and source_type == "base64":
        return {"type": "image_url", "image_url": {"url": _data_url(source)}}
    if isinstance(source, dict) and kind == "document" and source_type == "text":
        return {"type": "text", "text": text(source.get("data"))}
    if isinstance(source, dict) and kind == "document" and source_type == "base64":
        name = text(block.get("title")) or "document.pdf"
        return {"type": "file", "file": {"filename": name, "file_data": _data_url(source)}}
    raise _unsupported(
        f"{where}: a block of type '{kind}'" + (f" with a source of type '{source_type}'" if source_type else "")
    )


def _data_url(source: dict[str, Any]) -> str:
    return f"data:{text(source.get('media_type'))};base64,{text(source.get('data'))}"


def _content(parts: list[Chat]) -> Any:
    """Return a string for at most one text, which every upstream accepts; else the parts."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _tool(tool: Any) -> Chat:
    if not isinstance(tool, dict) or not isinstance(tool.get("name", ""), str):
        raise BadRequest("'tools' must be a list of tools with a name")
    if tool.get("type") not in (None, "custom"):
        raise _unsupported(f"the tool '{tool['type']}', whose schema or server is Anthropic's,")
    function = {
        "name": text(tool.get("name")),
        "parameters": tool.get("input_schema") or {"type": "object", "properties": {}},
    }
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _set_tool_choice(chat: Chat, choice: Any) -> None:
    if not isinstance(choice, dict):
        return
    kind = choice.get("type")
    if kind == "tool":
        chat["tool_choice"] = {"type": "function", "function": {"name": text(choice.get("name"))}}
    elif kind in ("auto", "any", "none"):
        chat["tool_choice"] = "required" if kind == "any" else kind
    else:
        raise BadRequest("'tool_choice.type' must be auto, any, tool or none")
    if choice.get("disable_parallel_tool_use") is True:
        chat["parallel_tool_calls"] = False


def _format(request: dict[str, Any]) -> Chat | None:
    config = request.get("output_config")
    schema = config.get("format") if isinstance(config, dict) else None
    if schema is None:
        schema = request.get("output_format")  # its name during the beta
    if schema is None:
        return None
    if not isinstance(schema, dict) or schema.get("type") != "json_schema":
        raise BadRequest("'output_config.format' must be of type json_schema")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema.get("schema"), "strict": True}}


def _list(request: dict[str, Any], name: str) -> list[Any]:
    value = request.get(name)
    if not isinstance(value, list | None):
        raise BadRequest(f"'{name}' must be a list")
    return value or []


def _unsupported(feature: str) -> BadRequest:
    return BadRequest(f"{feature} is not available for this model, which is served as chat completions: {_REMEDY}")
