"""Relay a streamed answer to the caller, and collect the `Answer` that its events contain."""

import logging
import time
from typing import Any, Protocol

import orjson

from stepstream.core import lenient_json
from stepstream.services.gateway.http.sse import EventParser, ServerSentEvent, with_data
from stepstream.services.gateway.protocols.base import Answer, ChatTranslation, ModelProtocol, RequestedAdditions
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.services.gateway.response_ids import TenantIds

log = logging.getLogger(__name__)

PARSE_ERRORS = (TypeError, ValueError, AttributeError, LookupError)
"""Exceptions from reading JSON of an unexpected shape."""


class StreamRelay(Protocol):
    """One stream between upstream and caller."""

    first_token_ms: float | None
    """Milliseconds from the call's start to the model's first output; None: none yet."""

    def feed(self, chunk: bytes) -> bytes:
        """Take bytes from the upstream; return the bytes for the caller."""
        ...

    def end(self) -> bytes:
        """Return the last bytes for the caller, after the upstream's end."""
        ...

    def end_with_error(self, message: str, kind: str) -> bytes:
        """Return the event that reports a broken stream to the caller."""
        ...

    def answer(self) -> Answer:
        """Return the answer so far, with the response id that the caller received."""
        ...


class NativeRelay:
    """Relays a stream in the caller's own protocol: bytes are unchanged, except for additions not requested and ids."""

    def __init__(
        self,
        protocol: ModelProtocol,
        requested: RequestedAdditions,
        started: float,
        response_ids: TenantIds | None = None,
    ) -> None:
        """`started`: time of the call, by `time.perf_counter`; `response_ids`: None: ids are unchanged."""
        self.first_token_ms: float | None = None
        self._protocol = protocol
        self._requested = requested
        self._response_ids = response_ids
        self._reader = protocol.stream()
        self._parser = EventParser()
        self._started = started
        self._malformed = False

    def feed(self, chunk: bytes) -> bytes:
        """Return the complete events, each without additions."""
        return b"".join([self._event(event) for event in self._parser.feed(chunk)])

    def end(self) -> bytes:
        """Return the incomplete event at the end."""
        return self._parser.rest()

    def end_with_error(self, message: str, kind: str) -> bytes:
        """Return the protocol's error event."""
        return self._protocol.error_event(message, kind)

    def answer(self) -> Answer:
        """Return the answer so far."""
        answer = self._reader.answer()
        if self._malformed:
            for each in answer.all_choices():
                each.error, each.finish_reason = "malformed_response", "error"
        return answer

    def _event(self, event: ServerSentEvent) -> bytes:
        body = parse_object(event.data)
        if body is None:
            return event.raw
        renamed = rename_model(body, self._requested)
        if self._response_ids is not None:
            renamed |= self._response_ids.tag_reply(body)
        try:
            has_output = self._reader.add(body)
            is_changed = self._protocol.strip(body, self._requested) or renamed
            sent = with_data(event, orjson.dumps(body)) if is_changed else event.raw
        except PARSE_ERRORS:
            self._malformed = True  # the caller gets it unchanged, and can judge it
            return event.raw
        if has_output and self.first_token_ms is None:
            self.first_token_ms = (time.perf_counter() - self._started) * 1000.0
        return sent


class TranslatedRelay:
    """Relays a chat completion's stream as events of the caller's protocol."""

    def __init__(
        self, protocol: ModelProtocol, translation: ChatTranslation, requested: RequestedAdditions, started: float
    ) -> None:
        """`started`: time of the call, by `time.perf_counter`."""
        self.first_token_ms: float | None = None
        self._protocol = protocol
        self._translation = translation
        self._requested = requested
        self._reader = CHAT.stream()
        self._parser = EventParser()
        self._started = started
        self._response_id = ""
        self._error: str | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Return the events of the caller's protocol."""
        out = b"".join([self._event(event) for event in self._parser.feed(chunk)])
        if not self._response_id and out:
            self._response_id = self._response_id_in(out)
        return out

    def end(self) -> bytes:
        """Return the events that end the stream."""
        return self._translation.end(self._error)

    def end_with_error(self, message: str, kind: str) -> bytes:
        """Return the events that report the error."""
        return self._translation.end(message)

    def answer(self) -> Answer:
        """Return the answer so far."""
        answer = self._reader.answer()
        answer.response_id = self._response_id
        answer.items = self._translation.items
        return answer

    def _event(self, event: ServerSentEvent) -> bytes:
        chunk = parse_object(event.data)
        if chunk is None:
            return b"" if event.data is not None else self._translation.keep_alive(event.raw)
        rename_model(chunk, self._requested)
        try:
            has_output = self._reader.add(chunk)
            if "error" in chunk:
                self._error = error_message(chunk)
                return b""
            out = self._translation.feed(chunk)
        except PARSE_ERRORS:
            log.warning("skipped an upstream's chunk that cannot be translated", exc_info=True)
            self._reader.error, self._error = "malformed_response", "the upstream's answer cannot be read"
            return b""
        if has_output and self.first_token_ms is None:
            self.first_token_ms = (time.perf_counter() - self._started) * 1000.0
        return out

    def _response_id_in(self, out: bytes) -> str:
        reader = self._protocol.stream()
        for event in EventParser().feed(out):
            body = parse_object(event.data)
            if body is not None:
                reader.add(body)
        return reader.answer().response_id


def parse_object(data: bytes | None) -> dict[str, Any] | None:
    """Return the JSON object in the bytes of an event or a reply; None: there is none."""
    if data is None or data == b"[DONE]":
        return None
    try:
        body = lenient_json.loads(data)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def rename_model(body: dict[str, Any], requested: RequestedAdditions) -> bool:
    """Replace the upstream's name of the model by the caller's; return True if they differ."""
    if not requested.model or "model" not in body:
        return False
    body["model"] = requested.model
    return True


def error_message(body: dict[str, Any] | None) -> str:
    """Return the message of an upstream's error."""
    error = body.get("error", body) if body is not None else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else "the upstream reported an error"
