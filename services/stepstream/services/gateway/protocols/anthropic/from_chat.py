"""A chat completion's reply as a message of Anthropic's, whole or streamed.

Anthropic's server-sent events and errors, as its clients expect them.
"""

from collections.abc import Iterable
from typing import Any

import orjson

from stepstream.services.gateway.protocols.anthropic.blocks import INVALID_JSON
from stepstream.services.gateway.protocols.anthropic.stream import tool_input
from stepstream.services.gateway.protocols.messages import count, json_text, text

_ERROR_TYPES = frozenset(
    {
        "invalid_request_error",
        "authentication_error",
        "billing_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "rate_limit_error",
        "api_error",
        "timeout_error",
        "overloaded_error",
    }
)
_OURS = {"upstream_unavailable": "overloaded_error", "backlog_full": "overloaded_error"}


def event(data: dict[str, Any]) -> bytes:
    """One event; its name is the `type` of its data."""
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), orjson.dumps(data))


def error_event(message: str, kind: str) -> dict[str, Any]:
    """An error's body, which is an error event's data too; kinds that Anthropic does not have are `api_error`."""
    known = kind if kind in _ERROR_TYPES else _OURS.get(kind, "api_error")
    return {"type": "error", "error": {"type": known, "message": message}}


_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}
_BLOCK_DELTAS = {"text": "text_delta", "thinking": "thinking_delta"}


class AnthropicTranslation:
    """See `ChatTranslation`. Reasoning is shown where the request switches thinking on, without a signature."""

    def __init__(self, chat: dict[str, Any], request: dict[str, Any]) -> None:
        self.request = chat
        self.items: list[dict[str, Any]] = []
        thinking = request.get("thinking")
        self._thinking = isinstance(thinking, dict) and thinking.get("type") != "disabled"
        self._stops = frozenset(stop for stop in chat.get("stop", ()) if isinstance(stop, str))
        self._events = _Events(self._thinking, self._stops)

    def reply(self, completion: dict[str, Any]) -> dict[str, Any]:
        """The message; an error's body where the completion has no choice."""
        choices = completion.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        said = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(said, dict):
            return error_event("the upstream answered without a message", "api_error")
        content: list[dict[str, Any]] = []
        if self._thinking and (thought := _reasoning(said)):
            content.append({"type": "thinking", "thinking": thought, "signature": ""})
        if spoken := _spoken(said):
            content.append({"type": "text", "text": spoken})
        calls = [_Call().add(call) for call in said.get("tool_calls") or ()]
        content += [call.block() | {"input": tool_input(call.arguments)} for call in calls]
        return _message(completion, content) | {
            **_stop(choice, bool(calls), self._stops),
            "usage": _usage(completion.get("usage")),
        }

    def feed(self, chunk: dict[str, Any]) -> bytes:
        """The events that this chunk makes."""
        return b"".join(self._events.add(chunk))

    def end(self, error: str | None = None) -> bytes:
        """The last events; after an error that the upstream told, none."""
        return b"".join(self._events.end(error))


class _Call:
    """One tool call on its way."""

    def __init__(self) -> None:
        self.id = self.name = self.arguments = ""
        self.begun = False

    def add(self, part: dict[str, Any]) -> "_Call":
        """Takes in a piece of it."""
        function = part.get("function") or {}
        self.id = text(part.get("id")) or self.id
        self.name += text(function.get("name"))
        self.arguments += text(function.get("arguments"))
        return self

    def block(self) -> dict[str, Any]:
        """Its block as a stream begins it."""
        return {"type": "tool_use", "id": self.id, "name": self.name, "input": {}}

    def complete(self) -> bool:
        """Whether its arguments are a whole JSON value."""
        try:
            orjson.loads(self.arguments)
        except orjson.JSONDecodeError:
            return False
        return True


class _Events:
    """Anthropic's stream has one open block at a time, so what belongs to a later block waits.

    Text and thinking go on as they come. A call's arguments are sent in one piece, checked: clients fail on a piece
    that is no beginning of JSON, and Anthropic's own streams are checked too.
    """

    def __init__(self, thinking: bool, stops: frozenset[str]) -> None:
        self._thinking = thinking
        self._stops = stops
        self._started = self._ended = False
        self._index = -1
        self._open: str | None = None
        self._calls: dict[Any, _Call] = {}
        self._waiting: list[_Call] = []
        self._late: list[tuple[str, str]] = []
        self._last: dict[str, Any] | None = None
        self._usage: dict[str, Any] | None = None

    def add(self, chunk: dict[str, Any]) -> Iterable[bytes]:
        if self._ended:
            return
        if told := chunk.get("error"):
            yield from self.end(text(told.get("message")) if isinstance(told, dict) else text(told))
            return
        if not self._started:
            self._started = True
            start = _message(chunk, []) | {"stop_reason": None, "stop_sequence": None, "usage": _usage(None)}
            yield event({"type": "message_start", "message": start})
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            if not choice.get("index"):
                yield from self._choice(choice)

    def end(self, error: str | None) -> Iterable[bytes]:
        if self._ended:
            return
        self._ended = True
        if error is not None or self._last is None:
            message = error or "the upstream's answer ended before it was complete"
            yield event(error_event(message, "api_error"))
            return
        yield from self._advance(last=True)
        for kind, piece in self._late:
            yield from self._say(kind, piece)
        yield from self._close()
        stop = _stop(self._last, bool(self._calls), self._stops)
        yield event({"type": "message_delta", "delta": stop, "usage": _usage(self._usage)})
        yield event({"type": "message_stop"})

    def _choice(self, choice: dict[str, Any]) -> Iterable[bytes]:
        delta = choice.get("delta") or {}
        for kind, piece in (("thinking", _reasoning(delta) if self._thinking else ""), ("text", _spoken(delta))):
            if piece and self._calls:
                self._late.append((kind, piece))
            elif piece:
                yield from self._say(kind, piece)
        for position, part in enumerate(delta.get("tool_calls") or ()):
            index = part.get("index", position)
            if index not in self._calls:
                self._calls[index] = _Call()
                self._waiting.append(self._calls[index])
            self._calls[index].add(part)
            yield from self._advance(last=False)
        if choice.get("finish_reason"):
            self._last = choice

    def _say(self, kind: str, piece: str) -> Iterable[bytes]:
        if self._open != kind:
            more = {"signature": ""} if kind == "thinking" else {}
            yield from self._begin(kind, {"type": kind, kind: "", **more})
        yield self._delta({"type": _BLOCK_DELTAS[kind], kind: piece})

    def _advance(self, *, last: bool) -> Iterable[bytes]:
        """Sends the calls that can be sent, in their order; at the end all."""
        while self._waiting:
            call = self._waiting[0]
            if not call.begun:
                if not (last or call.arguments or len(self._waiting) > 1):
                    return  # its name may not be whole
                call.begun = True
                yield from self._begin("tool_use", call.block())
            if not (last or (len(self._waiting) > 1 and call.complete())):
                return
            given = tool_input(call.arguments)
            checked = call.arguments if call.arguments and INVALID_JSON not in given else json_text(given)
            yield self._delta({"type": "input_json_delta", "partial_json": checked})
            self._waiting.pop(0)

    def _begin(self, kind: str, block: dict[str, Any]) -> Iterable[bytes]:
        yield from self._close()
        self._index += 1
        self._open = kind
        yield event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _close(self) -> Iterable[bytes]:
        if self._open is not None:
            self._open = None
            yield event({"type": "content_block_stop", "index": self._index})


def _message(completion: dict[str, Any], content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": text(completion.get("id")),
        "type": "message",
        "role": "assistant",
        "model": text(completion.get("model")),
        "content": content,
    }


def _spoken(said: dict[str, Any]) -> str:
    return text(said.get("content")) or text(said.get("refusal"))


def _reasoning(said: dict[str, Any]) -> str:
    return text(said.get("reasoning_content")) or text(said.get("reasoning"))


def _stop(choice: dict[str, Any], calls: bool, stops: frozenset[str]) -> dict[str, Any]:
    """Why it ended. A forced call ends with `stop`; vLLM tells in `stop_reason` at which sequence it stopped."""
    reason, matched = text(choice.get("finish_reason")), choice.get("stop_reason")
    if calls and reason not in ("length", "content_filter"):
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if isinstance(matched, str) and matched in stops:
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    return {"stop_reason": _STOP_REASONS.get(reason, "end_turn"), "stop_sequence": None}


def _usage(usage: Any) -> dict[str, int]:
    """Anthropic counts tokens read from a cache apart from the rest of the prompt."""
    counts = usage if isinstance(usage, dict) else {}
    details = counts.get("prompt_tokens_details")
    cached = count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return {
        "input_tokens": max(0, (count(counts.get("prompt_tokens")) or 0) - (cached or 0)),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached or 0,
        "output_tokens": count(counts.get("completion_tokens")) or 0,
    }
