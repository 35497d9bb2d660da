"""Translate a chat completion's reply to Anthropic's message, whole or streamed. Pure."""

from collections.abc import Iterable
from typing import Any

import orjson

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
_MAPPED_ERROR_TYPES = {"upstream_unavailable": "overloaded_error", "backlog_full": "overloaded_error"}
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
"""Keeps a connection open; Anthropic sends one after a message's start too."""
_BLOCK_DELTAS = {"text": "text_delta", "thinking": "thinking_delta"}


class AnthropicTranslation:
    """A `ChatTranslation`. Reasoning becomes thinking without a signature, if the request enables thinking."""

    def __init__(self, chat: dict[str, Any], request: dict[str, Any]) -> None:
        self.request = chat
        self.items: list[dict[str, Any]] = []
        thinking = request.get("thinking")
        self._thinking = isinstance(thinking, dict) and thinking.get("type") != "disabled"
        self._stops = frozenset(stop for stop in chat.get("stop", ()) if isinstance(stop, str))
        self._events = _Events(self._thinking, self._stops)

    def reply(self, completion: dict[str, Any]) -> dict[str, Any]:
        """Return the message.

        Raises:
            ValueError: the completion has none.
        """
        choices = completion.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        reply = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(reply, dict):
            raise ValueError("the upstream answered without a message")
        content: list[dict[str, Any]] = []
        if self._thinking and (thinking := _reasoning(reply)):
            content.append({"type": "thinking", "thinking": thinking, "signature": ""})
        if answer := _content_or_refusal(reply):
            content.append({"type": "text", "text": answer})
        calls = [_Call().add(call) for call in reply.get("tool_calls") or ()]
        content += [call.block() | {"input": tool_input(call.arguments)} for call in calls]
        return _message(completion, content) | {
            **_stop(choice, bool(calls), self._stops),
            "usage": _usage(completion.get("usage")),
        }

    def feed(self, chunk: dict[str, Any]) -> bytes:
        """Return the events of one chunk."""
        return b"".join(self._events.add(chunk))

    def keep_alive(self, comment: bytes) -> bytes:
        """Return a ping in place of an upstream's comment; the comment itself before the message's start."""
        return PING if self._events.started else comment

    def end(self, error: str | None = None) -> bytes:
        """Return the last events; none after an error of the upstream."""
        return b"".join(self._events.end(error))


class _Call:
    """One tool call so far."""

    def __init__(self) -> None:
        self.id = self.name = ""
        self.started = False
        self._pieces: list[str] = []
        self._sent = 0

    @property
    def arguments(self) -> str:
        return "".join(self._pieces)

    def add(self, part: dict[str, Any]) -> "_Call":
        """Add a piece of it."""
        function = part.get("function") or {}
        self.id = text(part.get("id")) or self.id
        self.name += text(function.get("name"))
        if piece := text(function.get("arguments")):
            self._pieces.append(piece)
        return self

    def block(self) -> dict[str, Any]:
        """Return the block that begins it in a stream."""
        return {"type": "tool_use", "id": self.id, "name": self.name, "input": {}}

    def take(self, *, last: bool) -> str:
        """Return the arguments that were not sent yet; those that begin no object follow at the end, in one piece."""
        if not self._sent and not self.arguments.lstrip().startswith("{"):
            return json_text(tool_input(self.arguments)) if last else ""
        unsent = "".join(self._pieces[self._sent :])
        self._sent = len(self._pieces)
        return unsent

    def is_complete(self) -> bool:
        """Return True if the arguments are a complete JSON value."""
        try:
            orjson.loads(self.arguments)
        except orjson.JSONDecodeError:
            return False
        return True


class _Events:
    """Converts chunks to events. Anthropic's stream has one open block at a time; deltas of later blocks are buffered.

    Text, thinking and a call's arguments are sent immediately. Only arguments that begin no JSON object wait for the
    call's end, since clients fail on them; like Anthropic's own fine-grained stream, the others may end invalid.
    """

    def __init__(self, thinking: bool, stops: frozenset[str]) -> None:
        self._thinking = thinking
        self._stops = stops
        self.started = self._ended = False
        self._index = -1
        self._open: str | None = None
        self._calls: dict[Any, _Call] = {}
        self._unsent_calls: list[_Call] = []
        self._text_after_calls: list[tuple[str, str]] = []
        self._last: dict[str, Any] | None = None
        self._usage: dict[str, Any] | None = None

    def add(self, chunk: dict[str, Any]) -> Iterable[bytes]:
        if self._ended:
            return
        if error := chunk.get("error"):
            yield from self.end(text(error.get("message")) if isinstance(error, dict) else text(error))
            return
        if not self.started:
            self.started = True
            start = _message(chunk, []) | {"stop_reason": None, "stop_sequence": None, "usage": _usage(None)}
            yield event({"type": "message_start", "message": start}) + PING
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
        yield from self._send_calls(last=True)
        for kind, piece in self._text_after_calls:
            yield from self._send_text(kind, piece)
        yield from self._close()
        stop = _stop(self._last, bool(self._calls), self._stops)
        yield event({"type": "message_delta", "delta": stop, "usage": _usage(self._usage)})
        yield event({"type": "message_stop"})

    def _choice(self, choice: dict[str, Any]) -> Iterable[bytes]:
        delta = choice.get("delta") or {}
        for kind, piece in (
            ("thinking", _reasoning(delta) if self._thinking else ""),
            ("text", _content_or_refusal(delta)),
        ):
            if piece and self._calls:
                self._text_after_calls.append((kind, piece))
            elif piece:
                yield from self._send_text(kind, piece)
        for position, part in enumerate(delta.get("tool_calls") or ()):
            index = part.get("index", position)
            if index not in self._calls:
                self._calls[index] = _Call()
                self._unsent_calls.append(self._calls[index])
            self._calls[index].add(part)
            yield from self._send_calls(last=False)
        if choice.get("finish_reason"):
            self._last = choice

    def _send_text(self, kind: str, piece: str) -> Iterable[bytes]:
        if self._open != kind:
            more = {"signature": ""} if kind == "thinking" else {}
            yield from self._begin(kind, {"type": kind, kind: "", **more})
        yield self._delta({"type": _BLOCK_DELTAS[kind], kind: piece})

    def _send_calls(self, *, last: bool) -> Iterable[bytes]:
        """Send the calls that are complete, in their order; at the end all."""
        while self._unsent_calls:
            call = self._unsent_calls[0]
            if not call.started:
                if not (last or call.arguments or len(self._unsent_calls) > 1):
                    return  # its name may be incomplete
                call.started = True
                yield from self._begin("tool_use", call.block())
            is_finished = last or (len(self._unsent_calls) > 1 and call.is_complete())
            if piece := call.take(last=is_finished):
                yield self._delta({"type": "input_json_delta", "partial_json": piece})
            if not is_finished:
                return
            self._unsent_calls.pop(0)

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


def _content_or_refusal(message: dict[str, Any]) -> str:
    return text(message.get("content")) or text(message.get("refusal"))


def _reasoning(message: dict[str, Any]) -> str:
    return text(message.get("reasoning_content")) or text(message.get("reasoning"))


def _stop(choice: dict[str, Any], calls: bool, stops: frozenset[str]) -> dict[str, Any]:
    """Return the stop reason. A forced call ends with `stop`; vLLM puts the matched sequence into `stop_reason`."""
    reason, matched = text(choice.get("finish_reason")), choice.get("stop_reason")
    if calls and reason not in ("length", "content_filter"):
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if isinstance(matched, str) and matched in stops:
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    return {"stop_reason": _STOP_REASONS.get(reason, "end_turn"), "stop_sequence": None}


def _usage(usage: Any) -> dict[str, int]:
    """Return Anthropic's usage, which counts cached prompt tokens separately."""
    counts = usage if isinstance(usage, dict) else {}
    details = counts.get("prompt_tokens_details")
    cached = count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return {
        "input_tokens": max(0, (count(counts.get("prompt_tokens")) or 0) - (cached or 0)),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached or 0,
        "output_tokens": count(counts.get("completion_tokens")) or 0,
    }


def event(data: dict[str, Any]) -> bytes:
    """Return a server-sent event named by the `type` of its data."""
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), orjson.dumps(data))


def error_event(message: str, kind: str) -> dict[str, Any]:
    """Return the body of an error, also the data of its event; types unknown to Anthropic become `api_error`."""
    known = kind if kind in _ERROR_TYPES else _MAPPED_ERROR_TYPES.get(kind, "api_error")
    return {"type": "error", "error": {"type": known, "message": message}}
