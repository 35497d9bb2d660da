"""A request of Anthropic's Messages API as a chat completion, for upstreams that speak nothing else."""

from typing import Any

from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.protocols.anthropic.blocks import result_text
from stepstream.services.gateway.protocols.messages import json_text, text

_SAME = ("model", "max_tokens", "temperature", "top_p", "top_k")
_SERVED_BY_ANTHROPIC = ("mcp_servers", "container")
_THOUGHTS = ("thinking", "redacted_thinking")
_ELSEWHERE = "leave it out, or name a model of an upstream that speaks Anthropic's Messages"

Chat = dict[str, Any]


def chat_request(request: dict[str, Any]) -> Chat:
    """The body for `/v1/chat/completions`.

    Thinking, prompt caching and service tiers are left out: they change how, not what is answered.

    Raises:
        BadRequest: something in it cannot be said in a chat completion.
    """
    for name in _SERVED_BY_ANTHROPIC:
        if request.get(name):
            raise _cannot(f"'{name}'")
    chat: Chat = {name: request[name] for name in _SAME if request.get(name) is not None}
    chat["messages"] = _messages(request)
    if tools := _list(request, "tools"):
        chat["tools"] = [_tool(tool) for tool in tools]
    _choose(chat, request.get("tool_choice"))
    if stops := _list(request, "stop_sequences"):
        chat["stop"] = stops
    if (wanted := _format(request)) is not None:
        chat["response_format"] = wanted
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
        raise _cannot("an answer that goes on from a last message of the assistant's (prefill)")
    return messages


def _user(content: Any, where: str) -> list[Chat]:
    """Tools' results first, as chat completions want them right after the calls; their pictures come with the rest."""
    results: list[Chat] = []
    parts: list[Chat] = []
    for block in _blocks(content, where):
        if block.get("type") == "tool_result":
            inner = _parts(block.get("content"), where)
            said = "".join([part["text"] for part in inner if part["type"] == "text"])
            answer = {"content": said, "is_error": block.get("is_error")}
            results.append(
                {"role": "tool", "tool_call_id": text(block.get("tool_use_id")), "content": result_text(answer)}
            )
            parts += [part for part in inner if part["type"] != "text"]
        else:
            parts.append(_part(block, where))
    return [*results, {"role": "user", "content": _content(parts)}] if parts or not results else results


def _assistant(content: Any, where: str) -> Chat:
    said: list[str] = []
    calls: list[Chat] = []
    for block in _blocks(content, where):
        kind = block.get("type")
        if kind == "tool_use":
            given = block.get("input")
            function = {"name": text(block.get("name")), "arguments": json_text({} if given is None else given)}
            calls.append({"id": text(block.get("id")), "type": "function", "function": function})
        elif kind == "text":
            said.append(text(block.get("text")))
        elif kind not in _THOUGHTS:
            raise _cannot(f"{where}: a block of type '{kind}'")
    spoken = "".join(said)
    return {"role": "assistant", "content": spoken or None, "tool_calls": calls} if calls else _said(spoken)


def _said(spoken: str) -> Chat:
    return {"role": "assistant", "content": spoken}


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
    raise _cannot(f"{where}: a block of type '{kind}'" + (f" with a source of type '{source_type}'" if source_type else ""))


def _data_url(source: dict[str, Any]) -> str:
    return f"data:{text(source.get('media_type'))};base64,{text(source.get('data'))}"


def _content(parts: list[Chat]) -> Any:
    """A string where there is one text or none: every upstream takes that."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _tool(tool: Any) -> Chat:
    if not isinstance(tool, dict) or not isinstance(tool.get("name", ""), str):
        raise BadRequest("'tools' must be a list of tools with a name")
    if tool.get("type") not in (None, "custom"):
        raise _cannot(f"the tool '{tool['type']}', whose schema or server is Anthropic's,")
    function = {
        "name": text(tool.get("name")),
        "parameters": tool.get("input_schema") or {"type": "object", "properties": {}},
    }
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _choose(chat: Chat, choice: Any) -> None:
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
    wanted = config.get("format") if isinstance(config, dict) else None
    if wanted is None:
        wanted = request.get("output_format")  # its name while it was a beta
    if wanted is None:
        return None
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
        raise BadRequest("'output_config.format' must be of type json_schema")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": wanted.get("schema"), "strict": True}}


def _list(request: dict[str, Any], name: str) -> list[Any]:
    value = request.get(name)
    if not isinstance(value, list | None):
        raise BadRequest(f"'{name}' must be a list")
    return value or []


def _cannot(what: str) -> BadRequest:
    return BadRequest(f"{what} cannot be had of this model, which is served as chat completions: {_ELSEWHERE}")
