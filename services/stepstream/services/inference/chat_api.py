"""Read requests and write replies of OpenAI's chat completion protocol, with vLLM's extensions for token ids."""

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from stepstream.services.inference.chat_tokenizer import ChatTokenizer, Message
from stepstream.services.inference.engine import SamplingParams, TokenChunk
from stepstream.services.inference.stop_strings import StopStrings
from stepstream.services.inference.tool_parsers import ParsedCall

_MAX_STOPS, _MAX_RESPONSES = 16, 128
_ROLES = {"system", "developer", "user", "assistant", "tool"}


class RequestError(Exception):
    """An error response in OpenAI's form."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The validated fields of a request."""

    model: str
    messages: list[Message]
    tools: list[dict[str, Any]]
    tool_names: frozenset[str]
    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int | None
    stop: tuple[str, ...]
    n: int
    """Number of responses."""
    stream: bool
    include_usage: bool
    logprobs: bool
    plain_logprobs: bool
    """True: write logprobs as plain numbers, at a tenth of the cost of OpenAI's objects on both sides."""
    return_token_ids: bool

    def sampling(self, room: int, tokenizer: ChatTokenizer, number: int) -> SamplingParams:
        """Return the engine's parameters for response `number`, from 0; `room`: tokens left in the context."""
        return SamplingParams(
            max_tokens=min(self.max_tokens or room, room),
            temperature=self.temperature,
            top_p=self.top_p,
            seed=None if self.seed is None else self.seed + number,
            stream=self.stream,
            stops=StopStrings(self.stop, tokenizer) if self.stop else None,
        )


def read_object(body: bytes) -> dict[str, Any]:
    """Return a body's fields.

    Raises:
        RequestError: 400, the body is no JSON object.
    """
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RequestError(400, "the body must be a JSON object")
    return fields


def read_request(body: bytes) -> ChatRequest:
    """Parse and validate a request.

    Raises:
        RequestError: 400, names the invalid field.
    """
    fields = read_object(body)
    for name, only in (("top_logprobs", 0), ("best_of", 1)):
        if fields.get(name) not in (None, only):
            raise RequestError(400, f"'{name}' is not supported", param=name)
    choice = fields.get("tool_choice") or "auto"
    if choice not in ("auto", "none"):
        raise RequestError(400, "'tool_choice' must be auto or none", param="tool_choice")
    tools = _tools(fields.get("tools") or [])
    names = frozenset(tool["function"]["name"] for tool in tools) if choice == "auto" else frozenset()
    limit = "max_completion_tokens" if fields.get("max_completion_tokens") is not None else "max_tokens"
    temperature = _number(fields, "temperature", float, 0, 2)
    top_p = _number(fields, "top_p", float, 1e-9, 1)
    return ChatRequest(
        model=read_model(fields.get("model")),
        messages=read_messages(fields.get("messages")),
        tools=tools,
        tool_names=names,
        max_tokens=_number(fields, limit, int, 1, 2**31),
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        seed=_number(fields, "seed", int, -(2**62), 2**62),
        stop=_stop(fields.get("stop")),
        n=_number(fields, "n", int, 1, _MAX_RESPONSES) or 1,
        stream=bool(fields.get("stream")),
        include_usage=_include_usage(fields.get("stream_options")),
        logprobs=bool(fields.get("logprobs")),
        plain_logprobs=bool(fields.get("plain_logprobs")),
        return_token_ids=bool(fields.get("return_token_ids")),
    )


def read_model(name: Any) -> str:
    """Return a model's name; raises RequestError if it is no text, or empty."""
    if not isinstance(name, str) or not name:
        raise RequestError(400, "'model' must be the name of a model", param="model")
    return name


def _stop(stop: Any) -> tuple[str, ...]:
    strings = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(strings, list) or len(strings) > _MAX_STOPS:
        raise RequestError(400, f"'stop' must be a string or a list of at most {_MAX_STOPS}", param="stop")
    if not all(isinstance(each, str) and each for each in strings):
        raise RequestError(400, "each of 'stop' must be a non-empty string", param="stop")
    return tuple(strings)


def _include_usage(options: Any) -> bool:
    if not isinstance(options, dict | None):
        raise RequestError(400, "'stream_options' must be an object", param="stream_options")
    return bool((options or {}).get("include_usage"))


def _number(fields: dict[str, Any], name: str, kind: type, low: float, high: float) -> Any:
    value = fields.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise RequestError(400, f"'{name}' must be a number from {low:g} to {high:g}", param=name)
    return kind(value)


def _tools(tools: Any) -> list[dict[str, Any]]:
    try:
        for tool in tools:
            if not isinstance(tool["function"]["name"], str):
                raise TypeError
    except (TypeError, KeyError) as error:
        raise RequestError(400, "'tools' must be a list of function tools", param="tools") from error
    return list(tools)


def read_messages(messages: Any) -> list[Message]:
    """Return messages in the form of chat templates; raises RequestError if they are not in OpenAI's form."""
    if not isinstance(messages, list) or not messages:
        raise RequestError(400, "'messages' must be a list with at least one message", param="messages")
    return [_message(index, message) for index, message in enumerate(messages)]


def _message(index: int, message: Any) -> Message:
    """Return a message in the form of chat templates: content as text, a call's arguments as an object."""
    param = f"messages[{index}]"
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise RequestError(400, f"{param}: 'role' must be one of {', '.join(sorted(_ROLES))}", param=param)
    role, content = message["role"], message.get("content")
    if isinstance(content, list):
        try:
            content = "".join(part["text"] for part in content)
        except (TypeError, KeyError) as error:
            raise RequestError(400, f"{param}: only text content is supported", param=param) from error
    calls = message.get("tool_calls")
    if not isinstance(content, str) and not (content is None and role == "assistant"):
        raise RequestError(400, f"{param}: 'content' must be text", param=param)
    if role == "developer":
        role = "system"
    if not calls:
        return {"role": role, "content": content}
    return {"role": role, "content": content, "tool_calls": [_call(param, call) for call in calls]}


def _call(param: str, call: Any) -> dict[str, Any]:
    try:
        function = call["function"]
        arguments = function["arguments"]
        if isinstance(arguments, str):
            arguments = orjson.loads(arguments)
        return {"id": call.get("id"), "function": {"name": function["name"], "arguments": arguments}}
    except (TypeError, KeyError, AttributeError, orjson.JSONDecodeError) as error:
        raise RequestError(
            400, f"{param}: a tool call must have function.name and JSON function.arguments", param=param
        ) from error


def weight_versions(last: TokenChunk) -> list[dict[str, int]]:
    """Return the version spans of a response, from its last chunk."""
    return [span._asdict() for span in last.versions]


def finish_reason(reason: str | None, call: ParsedCall | None) -> str | None:
    """Return OpenAI's `finish_reason`."""
    return "tool_calls" if call is not None and reason == "stop" else reason


def logprobs(request: ChatRequest, tokenizer: ChatTokenizer, chunks: Iterable[TokenChunk]) -> dict[str, Any] | None:
    """Return a choice's `logprobs`: OpenAI's `content`, one entry a token, or plain `values`; None: not requested."""
    if not request.logprobs:
        return None
    if request.plain_logprobs:
        return {"values": [logprob for chunk in chunks for logprob in chunk.logprobs]}
    entries: list[dict[str, Any]] = [
        {"token": tokenizer.token(token), "logprob": logprob, "bytes": None, "top_logprobs": []}
        for chunk in chunks
        for token, logprob in zip(chunk.token_ids, chunk.logprobs, strict=True)
    ]
    return {"content": entries, "refusal": None}


def tool_calls(call: ParsedCall, *, indexed: bool) -> list[dict[str, Any]]:
    """Return OpenAI's `tool_calls` with one call; `indexed`: with an index, as in a stream."""
    fields: dict[str, Any] = {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
    return [{"index": 0, **fields} if indexed else fields]


def usage(prompt: int, response: int) -> dict[str, int]:
    """Return OpenAI's `usage`, in tokens."""
    return {"prompt_tokens": prompt, "completion_tokens": response, "total_tokens": prompt + response}


def new_reply(kind: str, model: str) -> dict[str, Any]:
    """Return the first fields of every reply and chunk."""
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def complete_choice(
    request: ChatRequest,
    tokenizer: ChatTokenizer,
    number: int,
    chunks: Sequence[TokenChunk],
    text: str,
    call: ParsedCall | None,
) -> dict[str, Any]:
    """Return one complete choice, for a request that does not stream."""
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if call is not None:
        message |= {"content": None, "tool_calls": tool_calls(call, indexed=False)}
    choice: dict[str, Any] = {
        "index": number,
        "message": message,
        "finish_reason": finish_reason(chunks[-1].finish_reason, call),
        "logprobs": logprobs(request, tokenizer, chunks),
        "weight_versions": weight_versions(chunks[-1]),
    }
    if request.return_token_ids:
        choice["token_ids"] = tokens_of(chunks)
    return choice


def tokens_of(chunks: Iterable[TokenChunk]) -> list[int]:
    """Return a response's token ids."""
    return [token for chunk in chunks for token in chunk.token_ids]


def complete_reply(
    request: ChatRequest, prompt_ids: Sequence[int], choices: list[dict[str, Any]], response_tokens: int
) -> bytes:
    """Return the body of a complete reply; `response_tokens`: of all choices together."""
    reply = new_reply("chat.completion", request.model)
    if request.return_token_ids:
        reply["prompt_token_ids"] = prompt_ids
    return orjson.dumps(reply | {"choices": choices, "usage": usage(len(prompt_ids), response_tokens)})


def event(data: dict[str, Any]) -> bytes:
    """Encode one server-sent event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


DONE = b"data: [DONE]\n\n"
