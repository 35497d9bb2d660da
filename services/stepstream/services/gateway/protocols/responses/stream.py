"""A chat completion's stream as the events of a streamed response."""

from dataclasses import dataclass, field
from typing import Any

import orjson

from stepstream.services.gateway.protocols.messages import text
from stepstream.services.gateway.protocols.responses.from_chat import (
    Responder,
    final_status,
    logprobs_of,
    reasoning_of,
    refusal_part,
    text_part,
)
from stepstream.services.gateway.protocols.responses.items import Raw


@dataclass(slots=True)
class _Part:
    """A part of a message or of reasoning that is being said."""

    kind: str
    said: list[str] = field(default_factory=list)
    logprobs: list[Raw] = field(default_factory=list)

    def raw(self) -> Raw:
        said = "".join(self.said)
        if self.kind == "output_text":
            return text_part(said, self.logprobs)
        return refusal_part(said) if self.kind == "refusal" else {"type": self.kind, "text": said}


@dataclass(slots=True)
class _Open:
    """An item that has been added and is not done."""

    index: int
    id: str
    parts: list[_Part] = field(default_factory=list)


@dataclass(slots=True)
class _Call:
    """A call as far as its deltas have come; `item` once it has been added."""

    call_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    item: _Open | None = None


class EventStream:
    """Turns chunks into events.

    An item is added when the model begins it. Reasoning is done when something else begins; a message and calls are
    done when the answer is, so that text that comes in pieces between calls stays one message.
    """

    def __init__(self, responder: Responder) -> None:
        self._make = responder
        self._number = 0
        self._out: list[bytes] = []
        self._output: dict[int, Raw] = {}
        self._items = 0
        self._begun = self._over = False
        self._finish_reason: str | None = None
        self._usage: Any = None
        self._thinking: _Open | None = None
        self._message: _Open | None = None
        self._calls: dict[int, _Call] = {}

    @property
    def output(self) -> list[Raw]:
        """The items that are done."""
        return [self._output[index] for index in sorted(self._output)]

    def feed(self, chunk: dict[str, Any]) -> bytes:
        """The events of one chunk."""
        self._begin(chunk)
        if not self._over:
            self._usage = chunk.get("usage") or self._usage
            if chunk.get("error"):
                error = chunk["error"]
                self._fail(text(error.get("message") if isinstance(error, dict) else error))
            for choice in chunk.get("choices") or ():
                if not choice.get("index"):
                    self._choice(choice)
        return self._taken()

    def end(self, error: str | None) -> bytes:
        """The events that end the stream."""
        self._begin({})
        if not self._over:
            if error is None and self._finish_reason is None:
                error = "the upstream ended the stream before its answer was complete"
            if error is not None:
                self._fail(error)
            else:
                self._complete()
        return self._taken()

    def _begin(self, chunk: dict[str, Any]) -> None:
        if not self._begun:
            self._begun = True
            self._make.learn(chunk)
            self._emit("response.created", response=self._make.response("in_progress", []))
            self._emit("response.in_progress", response=self._make.response("in_progress", []))

    def _complete(self) -> None:
        status = final_status(self._finish_reason)
        self._close_all("completed" if status == "completed" else "incomplete")
        name = "response.completed" if status == "completed" else "response.incomplete"
        self._emit(name, response=self._make.response(status, self.output, self._usage))
        self._over = True

    def _fail(self, message: str) -> None:
        self._close_all("incomplete")
        self._emit("error", code="server_error", message=message, param=None)
        error = {"code": "server_error", "message": message}
        self._emit("response.failed", response=self._make.response("failed", self.output, self._usage, error))
        self._over = True

    def _choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        if isinstance(delta, dict):
            thought = reasoning_of(delta)
            if thought:
                self._think(thought)
            said = text(delta.get("content"))
            if said:
                self._say("output_text", said, logprobs_of(choice) if self._make.logprobs else [])
            refused = text(delta.get("refusal"))
            if refused:
                self._say("refusal", refused, [])
            for position, call in enumerate(delta.get("tool_calls") or ()):
                index = call.get("index")
                self._call(position if index is None else index, call)
        self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def _think(self, thought: str) -> None:
        if self._thinking is None:
            self._thinking = self._add(lambda index: self._make.reasoning(index, "", "in_progress"))
            self._add_part(self._thinking, "reasoning_text")
        self._thinking.parts[0].said.append(thought)
        self._emit("response.reasoning_text.delta", **_at(self._thinking), content_index=0, delta=thought)

    def _say(self, kind: str, said: str, logprobs: list[Raw]) -> None:
        self._close_thinking("completed")
        if self._message is None:
            self._message = self._add(lambda index: self._make.message(index, [], "in_progress"))
        message = self._message
        if not message.parts or message.parts[-1].kind != kind:
            if message.parts:
                self._close_part(message, len(message.parts) - 1)
            self._add_part(message, kind)
        part = message.parts[-1]
        part.said.append(said)
        part.logprobs += logprobs
        where = _at(message) | {"content_index": len(message.parts) - 1}
        if kind == "output_text":
            self._emit("response.output_text.delta", **where, delta=said, logprobs=logprobs)
        else:
            self._emit("response.refusal.delta", **where, delta=said)

    def _call(self, index: int, delta: dict[str, Any]) -> None:
        self._close_thinking("completed")
        call = self._calls.setdefault(index, _Call())
        call.call_id = text(delta.get("id")) or call.call_id
        function = delta.get("function") or {}
        call.name += text(function.get("name"))
        arguments = text(function.get("arguments"))
        if not arguments:
            return  # its name may still be coming
        for earlier in sorted(self._calls):
            if earlier <= index:
                self._open_call(self._calls[earlier])
        call.arguments.append(arguments)
        if call.item is not None and call.name not in self._make.custom:
            self._emit("response.function_call_arguments.delta", **_at(call.item), delta=arguments)

    def _open_call(self, call: _Call) -> None:
        if call.item is None:
            call.item = self._add(lambda index: self._make.call(index, call.call_id, call.name, "", "in_progress"))

    def _close_all(self, status: str) -> None:
        self._close_thinking(status)
        if self._message is not None:
            self._close_part(self._message, len(self._message.parts) - 1)
            parts = [part.raw() for part in self._message.parts]
            self._done(self._message, self._make.message(self._message.index, parts, status))
        for index in sorted(self._calls):
            self._close_call(self._calls[index], status)

    def _close_thinking(self, status: str) -> None:
        thinking, self._thinking = self._thinking, None
        if thinking is not None:
            self._close_part(thinking, 0)
            said = thinking.parts[0].raw()["text"]
            self._done(thinking, self._make.reasoning(thinking.index, said, status))

    def _close_call(self, call: _Call, status: str) -> None:
        self._open_call(call)
        assert call.item is not None
        item = self._make.call(call.item.index, call.call_id, call.name, "".join(call.arguments), status)
        where = _at(call.item)
        if item["type"] == "custom_tool_call":
            if item["input"]:
                self._emit("response.custom_tool_call_input.delta", **where, delta=item["input"])
            self._emit("response.custom_tool_call_input.done", **where, input=item["input"])
        else:
            done = {"name": call.name, "arguments": item["arguments"]}
            self._emit("response.function_call_arguments.done", **where, **done)
        self._done(call.item, item)

    def _add(self, made: Any) -> _Open:
        index = self._items
        self._items += 1
        item = made(index)
        self._emit("response.output_item.added", output_index=index, item=item)
        return _Open(index, item["id"])

    def _done(self, item: _Open, raw: Raw) -> None:
        self._output[item.index] = raw
        self._emit("response.output_item.done", output_index=item.index, item=raw)

    def _add_part(self, item: _Open, kind: str) -> None:
        part = _Part(kind)
        item.parts.append(part)
        where = _at(item) | {"content_index": len(item.parts) - 1}
        self._emit("response.content_part.added", **where, part=part.raw())

    def _close_part(self, item: _Open, index: int) -> None:
        part = item.parts[index]
        raw = part.raw()
        where = _at(item) | {"content_index": index}
        if part.kind == "output_text":
            self._emit("response.output_text.done", **where, text=raw["text"], logprobs=part.logprobs)
        elif part.kind == "refusal":
            self._emit("response.refusal.done", **where, refusal=raw["refusal"])
        else:
            self._emit("response.reasoning_text.done", **where, text=raw["text"])
        self._emit("response.content_part.done", **where, part=raw)

    def _emit(self, kind: str, **fields: Any) -> None:
        event = {"type": kind, "sequence_number": self._number} | fields
        self._number += 1
        self._out.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(event)))

    def _taken(self) -> bytes:
        out = b"".join(self._out)
        self._out.clear()
        return out


def _at(item: _Open) -> Raw:
    return {"item_id": item.id, "output_index": item.index}
