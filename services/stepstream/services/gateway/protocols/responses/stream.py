"""Translate a chat completion's stream to the events of a streamed response. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from stepstream.services.gateway.protocols.messages import text
from stepstream.services.gateway.protocols.responses.from_chat import (
    ResponseBuilder,
    final_status,
    logprobs_of,
    reasoning_of,
    refusal_part,
    text_part,
)
from stepstream.services.gateway.protocols.responses.items import Raw


@dataclass(slots=True)
class _Part:
    """A growing part of a message or of reasoning."""

    kind: str
    texts: list[str] = field(default_factory=list)
    logprobs: list[Raw] = field(default_factory=list)

    def raw(self) -> Raw:
        value = "".join(self.texts)
        if self.kind == "output_text":
            return text_part(value, self.logprobs)
        return refusal_part(value) if self.kind == "refusal" else {"type": self.kind, "text": value}


@dataclass(slots=True)
class _OpenItem:
    """An item that has been added and is not done."""

    index: int
    id: str
    parts: list[_Part] = field(default_factory=list)


@dataclass(slots=True)
class _Call:
    """A tool call so far; `item`: set once it has been added."""

    call_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    item: _OpenItem | None = None


class EventStream:
    """Converts chunks to events.

    An item is added when the model begins it. Reasoning is done when another item begins. A message and calls are done
    at the end of the answer, so that text between calls stays one message.
    """

    def __init__(self, builder: ResponseBuilder) -> None:
        self._builder = builder
        self._number = 0
        self._out: list[bytes] = []
        self._output: dict[int, Raw] = {}
        self._items = 0
        self._started = self._ended = False
        self._finish_reason: str | None = None
        self._usage: Any = None
        self._reasoning: _OpenItem | None = None
        self._message: _OpenItem | None = None
        self._calls: dict[int, _Call] = {}

    @property
    def output(self) -> list[Raw]:
        """Completed items."""
        return [self._output[index] for index in sorted(self._output)]

    def feed(self, chunk: dict[str, Any]) -> bytes:
        """Convert one chunk to events."""
        self._begin(chunk)
        if not self._ended:
            self._usage = chunk.get("usage") or self._usage
            if chunk.get("error"):
                error = chunk["error"]
                self._fail(text(error.get("message") if isinstance(error, dict) else error))
            for choice in chunk.get("choices") or ():
                if not choice.get("index"):
                    self._choice(choice)
        return self._take_events()

    def end(self, error: str | None) -> bytes:
        """Return the events that end the stream."""
        self._begin({})
        if not self._ended:
            if error is None and self._finish_reason is None:
                error = "the upstream ended the stream before its answer was complete"
            if error is not None:
                self._fail(error)
            else:
                self._complete()
        return self._take_events()

    def _begin(self, chunk: dict[str, Any]) -> None:
        if not self._started:
            self._started = True
            self._builder.read_metadata(chunk)
            self._emit("response.created", response=self._builder.response("in_progress", []))
            self._emit("response.in_progress", response=self._builder.response("in_progress", []))

    def _complete(self) -> None:
        status = final_status(self._finish_reason)
        self._close_all("completed" if status == "completed" else "incomplete")
        name = "response.completed" if status == "completed" else "response.incomplete"
        self._emit(name, response=self._builder.response(status, self.output, self._usage))
        self._ended = True

    def _fail(self, message: str) -> None:
        self._close_all("incomplete")
        self._emit("error", code="server_error", message=message, param=None)
        error = {"code": "server_error", "message": message}
        self._emit("response.failed", response=self._builder.response("failed", self.output, self._usage, error))
        self._ended = True

    def _choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        if isinstance(delta, dict):
            reasoning = reasoning_of(delta)
            if reasoning:
                self._add_reasoning(reasoning)
            content = text(delta.get("content"))
            if content:
                self._add_text("output_text", content, logprobs_of(choice) if self._builder.logprobs else [])
            refusal = text(delta.get("refusal"))
            if refusal:
                self._add_text("refusal", refusal, [])
            for position, call in enumerate(delta.get("tool_calls") or ()):
                index = call.get("index")
                self._add_call(index if isinstance(index, int) else position, call)
        self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def _add_reasoning(self, delta: str) -> None:
        if self._reasoning is None:
            self._reasoning = self._add(lambda index: self._builder.reasoning(index, "", "in_progress"))
            self._add_part(self._reasoning, "reasoning_text")
        self._reasoning.parts[0].texts.append(delta)
        self._emit("response.reasoning_text.delta", **_at(self._reasoning), content_index=0, delta=delta)

    def _add_text(self, kind: str, delta: str, logprobs: list[Raw]) -> None:
        self._close_reasoning("completed")
        if self._message is None:
            self._message = self._add(lambda index: self._builder.message(index, [], "in_progress"))
        message = self._message
        if not message.parts or message.parts[-1].kind != kind:
            if message.parts:
                self._close_part(message, len(message.parts) - 1)
            self._add_part(message, kind)
        part = message.parts[-1]
        part.texts.append(delta)
        part.logprobs += logprobs
        position = _at(message) | {"content_index": len(message.parts) - 1}
        if kind == "output_text":
            self._emit("response.output_text.delta", **position, delta=delta, logprobs=logprobs)
        else:
            self._emit("response.refusal.delta", **position, delta=delta)

    def _add_call(self, index: int, delta: dict[str, Any]) -> None:
        self._close_reasoning("completed")
        call = self._calls.setdefault(index, _Call())
        call.call_id = text(delta.get("id")) or call.call_id
        function = delta.get("function") or {}
        call.name += text(function.get("name"))
        arguments = text(function.get("arguments"))
        if not arguments:
            return  # its name may be incomplete
        for earlier in sorted(self._calls):
            if earlier <= index:
                self._open_call(self._calls[earlier])
        call.arguments.append(arguments)
        if call.item is not None and call.name not in self._builder.custom:
            self._emit("response.function_call_arguments.delta", **_at(call.item), delta=arguments)

    def _open_call(self, call: _Call) -> None:
        if call.item is None:
            call.item = self._add(lambda index: self._builder.call(index, call.call_id, call.name, "", "in_progress"))

    def _close_all(self, status: str) -> None:
        self._close_reasoning(status)
        if self._message is not None:
            self._close_part(self._message, len(self._message.parts) - 1)
            parts = [part.raw() for part in self._message.parts]
            self._finish_item(self._message, self._builder.message(self._message.index, parts, status))
        for index in sorted(self._calls):
            self._close_call(self._calls[index], status)

    def _close_reasoning(self, status: str) -> None:
        item, self._reasoning = self._reasoning, None
        if item is not None:
            self._close_part(item, 0)
            reasoning = item.parts[0].raw()["text"]
            self._finish_item(item, self._builder.reasoning(item.index, reasoning, status))

    def _close_call(self, call: _Call, status: str) -> None:
        self._open_call(call)
        assert call.item is not None
        item = self._builder.call(call.item.index, call.call_id, call.name, "".join(call.arguments), status)
        position = _at(call.item)
        if item["type"] == "custom_tool_call":
            if item["input"]:
                self._emit("response.custom_tool_call_input.delta", **position, delta=item["input"])
            self._emit("response.custom_tool_call_input.done", **position, input=item["input"])
        else:
            done = {"name": call.name, "arguments": item["arguments"]}
            self._emit("response.function_call_arguments.done", **position, **done)
        self._finish_item(call.item, item)

    def _add(self, build: Callable[[int], Raw]) -> _OpenItem:
        index = self._items
        self._items += 1
        item = build(index)
        self._emit("response.output_item.added", output_index=index, item=item)
        return _OpenItem(index, item["id"])

    def _finish_item(self, item: _OpenItem, raw: Raw) -> None:
        self._output[item.index] = raw
        self._emit("response.output_item.done", output_index=item.index, item=raw)

    def _add_part(self, item: _OpenItem, kind: str) -> None:
        part = _Part(kind)
        item.parts.append(part)
        position = _at(item) | {"content_index": len(item.parts) - 1}
        self._emit("response.content_part.added", **position, part=part.raw())

    def _close_part(self, item: _OpenItem, index: int) -> None:
        part = item.parts[index]
        raw = part.raw()
        position = _at(item) | {"content_index": index}
        if part.kind == "output_text":
            self._emit("response.output_text.done", **position, text=raw["text"], logprobs=part.logprobs)
        elif part.kind == "refusal":
            self._emit("response.refusal.done", **position, refusal=raw["refusal"])
        else:
            self._emit("response.reasoning_text.done", **position, text=raw["text"])
        self._emit("response.content_part.done", **position, part=raw)

    def _emit(self, kind: str, **fields: Any) -> None:
        event = {"type": kind, "sequence_number": self._number} | fields
        self._number += 1
        self._out.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(event)))

    def _take_events(self) -> bytes:
        out = b"".join(self._out)
        self._out.clear()
        return out


def _at(item: _OpenItem) -> Raw:
    return {"item_id": item.id, "output_index": item.index}
