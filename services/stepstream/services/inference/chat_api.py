"""OpenAI's chat completion protocol, with vLLM's extensions for token ids: requests read, replies written."""

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

_MOST_STOPS, _MOST_RESPONSES = 16, 128
_ROLES = {"system", "developer", "user", "assistant", "tool"}


class RequestError(Exception):
    """An answer in OpenAI's error form."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What of a request matters here, checked."""

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
    """How many responses."""
    stream: bool
    include_usage: bool
    logprobs: bool
    plain_logprobs: bool
    """Whether logprobs are wanted as numbers alone, which costs both sides a tenth of OpenAI's objects."""
    return_token_ids: bool

    def sampling(self, room: int, tokenizer: ChatTokenizer, number: int) -> SamplingParams:
        """For the engine: of response `number`, from 0; `room` is what the context can still hold."""
        return SamplingParams(
            max_tokens=min(self.max_tokens or room, room),
            temperature=self.temperature,
            top_p=self.top_p,
            seed=None if self.seed is None else self.seed + number,
            stream=self.stream,
            stops=StopStrings(self.stop, tokenizer) if self.stop else None,
        )


def read_object(body: bytes) -> dict[str, Any]:
    """The fields of a body.

    Raises:
        RequestError: 400, it is not a JSON object.
    """
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RequestError(400, "the body must be a JSON object")
    return fields


def read_request(body: bytes) -> ChatRequest:
    """Check and take apart a request.

    Raises:
        RequestError: 400, naming what is wrong.
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
        n=_number(fields, "n", int, 1, _MOST_RESPONSES) or 1,
        stream=bool(fields.get("stream")),
        include_usage=_include_usage(fields.get("stream_options")),
        logprobs=bool(fields.get("logprobs")),
        plain_logprobs=bool(fields.get("plain_logprobs")),
        return_token_ids=bool(fields.get("return_token_ids")),
    )


def read_model(name: Any) -> str:
    """The name of a model; raises RequestError where it is none."""
    if not isinstance(name, str) or not name:
        raise RequestError(400, "'model' must be the name of a model", param="model")
    return name


def _stop(given: Any) -> tuple[str, ...]:
    strings = [given] if isinstance(given, str) else given or []
    if not isinstance(strings, list) or len(strings) > _MOST_STOPS:
        raise RequestError(400, f"'stop' must be a string or a list of at most {_MOST_STOPS}", param="stop")
    if not all(isinstance(each, str) and each for each in strings):
        raise RequestError(400, "each of 'stop' must be a string that is not empty", param="stop")
    return tuple(strings)


def _include_usage(options: Any) -> bool:
    if not isinstance(options, dict | None):
        raise RequestError(400, "'stream_options' must be an object", param="stream_options")
    return bool((options or {}).get("include_usage"))


def _number(fields: dict[str, Any], name: str, kind: type, low: float, high: float) -> Any:
    value = fields.get(name)
    if value is None:
        return None
    right = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    if not right or not low <= value <= high:
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
    """Messages as chat templates expect them; raises RequestError where they are not of OpenAI's form."""
    if not isinstance(messages, list) or not messages:
        raise RequestError(400, "'messages' must be a list with at least one message", param="messages")
    return [_message(index, message) for index, message in enumerate(messages)]


def _message(index: int, message: Any) -> Message:
    """The message as chat templates expect it: content as text, a call's arguments as an object."""
    where = f"messages[{index}]"
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise RequestError(400, f"{where}: 'role' must be one of {', '.join(sorted(_ROLES))}", param=where)
    role, content = message["role"], message.get("content")
    if isinstance(content, list):
        try:
            content = "".join(part["text"] for part in content)
        except (TypeError, KeyError) as error:
            raise RequestError(400, f"{where}: only text content is supported", param=where) from error
    calls = message.get("tool_calls")
    if not isinstance(content, str) and not (content is None and role == "assistant"):
        raise RequestError(400, f"{where}: 'content' must be text", param=where)
    if role == "developer":
        role = "system"
    if not calls:
        return {"role": role, "content": content}
    return {"role": role, "content": content, "tool_calls": [_call(where, call) for call in calls]}


def _call(where: str, call: Any) -> dict[str, Any]:
    try:
        function = call["function"]
        arguments = function["arguments"]
        if isinstance(arguments, str):
            arguments = orjson.loads(arguments)
        return {"id": call.get("id"), "function": {"name": function["name"], "arguments": arguments}}
    except (TypeError, KeyError, AttributeError, orjson.JSONDecodeError) as error:
        raise RequestError(
            400, f"{where}: a tool call must have function.name and JSON function.arguments", param=where
        ) from error


def weight_versions(last: TokenChunk) -> list[dict[str, int]]:
    """Spans [start, end) of response tokens by the version that sampled them, from the last chunk."""
    return [span._asdict() for span in last.versions]


def finish_reason(reason: str | None, call: ParsedCall | None) -> str | None:
    """OpenAI's word for how a response ended."""
    return "tool_calls" if call is not None and reason == "stop" else reason


def logprobs(request: ChatRequest, tokenizer: ChatTokenizer, chunks: Iterable[TokenChunk]) -> dict[str, Any] | None:
    """What a choice has as its `logprobs`: OpenAI's `content`, one entry a token, or `values`; None: nothing."""
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
    """OpenAI's `tool_calls` with one call; in a stream each has an index."""
    written: dict[str, Any] = {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
    return [{"index": 0, **written} if indexed else written]


def usage(prompt: int, response: int) -> dict[str, int]:
    """OpenAI's `usage`, in tokens."""
    return {"prompt_tokens": prompt, "completion_tokens": response, "total_tokens": prompt + response}


def new_reply(kind: str, model: str) -> dict[str, Any]:
    """The fields that all replies and chunks begin with."""
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def whole_choice(
    request: ChatRequest,
    tokenizer: ChatTokenizer,
    number: int,
    chunks: Sequence[TokenChunk],
    text: str,
    call: ParsedCall | None,
) -> dict[str, Any]:
    """One response to a request that does not stream."""
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
    """The token ids of a response."""
    return [token for chunk in chunks for token in chunk.token_ids]


def whole_reply(
    request: ChatRequest, prompt_ids: Sequence[int], choices: list[dict[str, Any]], response_tokens: int
) -> bytes:
    """The reply to a request that does not stream; `response_tokens` of all choices together."""
    reply = new_reply("chat.completion", request.model)
    if request.return_token_ids:
        reply["prompt_token_ids"] = prompt_ids
    return orjson.dumps(reply | {"choices": choices, "usage": usage(len(prompt_ids), response_tokens)})


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


DONE = b"data: [DONE]\n\n"
