"""One streamed answer on its way: gathers what it spells, and gives out what the caller is to get."""

import logging
import time
from typing import Any, Protocol

import orjson

from stepstream.core import lenient_json
from stepstream.services.gateway.http.sse import EventParser, ServerSentEvent, with_data
from stepstream.services.gateway.protocols.base import Answer, Asked, ChatTranslation, ModelProtocol
from stepstream.services.gateway.protocols.chat.protocol import CHAT

log = logging.getLogger(__name__)

READING_FAULTS = (TypeError, ValueError, AttributeError, LookupError)
"""What reading JSON of an unexpected shape raises."""


class StreamRelay(Protocol):
    """A stream between upstream and caller."""

    first_token_ms: float | None

    def feed(self, chunk: bytes) -> bytes:
        """Takes in bytes; returns what goes on to the caller."""
        ...

    def end(self) -> bytes:
        """What is left for the caller when the upstream has ended."""
        ...

    def broke(self, message: str, kind: str) -> bytes:
        """What tells the caller that there will be no more."""
        ...

    def answer(self) -> Answer:
        """What has been said so far, with the response id that the caller saw."""
        ...


class Native:
    """The upstream speaks the caller's protocol: its bytes go through, except for what was not asked for."""

    def __init__(self, protocol: ModelProtocol, asked: Asked, started: float) -> None:
        self.first_token_ms: float | None = None
        self._protocol = protocol
        self._asked = asked
        self._reader = protocol.stream()
        self._parser = EventParser()
        self._started = started
        self._malformed = False

    def feed(self, chunk: bytes) -> bytes:
        """The same events, each stripped."""
        return b"".join([self._event(event) for event in self._parser.feed(chunk)])

    def end(self) -> bytes:
        """What an upstream left without an end."""
        return self._parser.rest()

    def broke(self, message: str, kind: str) -> bytes:
        """The protocol's own error event."""
        return self._protocol.error_event(message, kind)

    def answer(self) -> Answer:
        """What the events spell."""
        answer = self._reader.answer()
        if self._malformed:
            for each in answer.every():
                each.error, each.finish_reason = "malformed_response", "error"
        return answer

    def _event(self, event: ServerSentEvent) -> bytes:
        body = json_object(event.data)
        if body is None:
            return event.raw
        try:
            spoke = self._reader.add(body)
        except READING_FAULTS:
            self._malformed = True  # the caller's to judge: it goes on as it is
            return event.raw
        if spoke and self.first_token_ms is None:
            self.first_token_ms = (time.perf_counter() - self._started) * 1000.0
        return with_data(event, orjson.dumps(body)) if self._protocol.strip(body, self._asked) else event.raw


class Translated:
    """The upstream speaks chat completions alone: its chunks are told in the caller's protocol."""

    def __init__(self, protocol: ModelProtocol, translation: ChatTranslation, started: float) -> None:
        self.first_token_ms: float | None = None
        self._protocol = protocol
        self._translation = translation
        self._reader = CHAT.stream()
        self._parser = EventParser()
        self._started = started
        self._response_id = ""
        self._error: str | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Events of the caller's protocol."""
        out = b"".join([self._event(event) for event in self._parser.feed(chunk)])
        if not self._response_id and out:
            self._response_id = self._seen_id(out)
        return out

    def end(self) -> bytes:
        """The events that end the stream."""
        return self._translation.end(self._error)

    def broke(self, message: str, kind: str) -> bytes:
        """The events that say that it broke."""
        return self._translation.end(message)

    def answer(self) -> Answer:
        """What the chunks spell."""
        answer = self._reader.answer()
        answer.response_id = self._response_id
        answer.items = self._translation.items
        return answer

    def _event(self, event: ServerSentEvent) -> bytes:
        chunk = json_object(event.data)
        if chunk is None:
            return b"" if event.data is not None else event.raw  # a comment keeps the connection open
        try:
            spoke = self._reader.add(chunk)
            if "error" in chunk:
                self._error = error_message(chunk)
                return b""
            out = self._translation.feed(chunk)
        except READING_FAULTS:
            log.warning("an upstream's chunk cannot be translated", exc_info=True)
            self._reader.error, self._error = "malformed_response", "the upstream's answer cannot be read"
            return b""
        if spoke and self.first_token_ms is None:
            self.first_token_ms = (time.perf_counter() - self._started) * 1000.0
        return out

    def _seen_id(self, out: bytes) -> str:
        reader = self._protocol.stream()
        for event in EventParser().feed(out):
            body = json_object(event.data)
            if body is not None:
                reader.add(body)
        return reader.answer().response_id


def json_object(data: bytes | None) -> dict[str, Any] | None:
    """The JSON object in an event's or a reply's bytes; None where there is none."""
    if data is None or data == b"[DONE]":
        return None
    try:
        body = lenient_json.loads(data)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def error_message(body: dict[str, Any] | None) -> str:
    """What an upstream's error says."""
    error = body.get("error", body) if body is not None else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else "the upstream reported an error"
