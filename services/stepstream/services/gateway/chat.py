"""`/v1/chat/completions`: pass the call on, give the answer back, record the step.

The step is made after the answer's last byte has been sent, so recording takes nothing of the agent's time.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any

import orjson

from stepstream.config.sections import Gateway
from stepstream.services.gateway.answers import Answer, Asked, StreamedAnswer, answer_of, error_class, failed, strip
from stepstream.services.gateway.asgi import (
    JSON,
    Disconnected,
    Hangup,
    Headers,
    Receive,
    Scope,
    Send,
    read_body,
    respond,
    respond_error,
)
from stepstream.services.gateway.contexts import Contexts
from stepstream.services.gateway.errors import BadRequest, GatewayError, NoUpstream, error_body
from stepstream.services.gateway.identity import identify
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.publisher import Event, Publisher
from stepstream.services.gateway.recording import Call, Timing, step_of
from stepstream.services.gateway.sse import EventParser, ServerSentEvent
from stepstream.services.gateway.upstreams import Reply, StreamBroke, Upstreams
from stepstream.topics.ids import new_event_id, now_us

log = logging.getLogger(__name__)

PATH = "/v1/chat/completions"
ADDITIONS = ("logprobs", "return_token_ids")
_FORWARDED = frozenset({b"authorization", b"traceparent", b"tracestate", b"x-request-id", b"openai-beta"})


class ChatCompletions:
    """Handles model calls."""

    def __init__(
        self, settings: Gateway, upstreams: Upstreams, publisher: Publisher, metrics: Metrics, producer: str
    ) -> None:
        self._settings = settings
        self._upstreams = upstreams
        self._publisher = publisher
        self._metrics = metrics
        self._producer = producer
        self._contexts = Contexts(settings.context_cache)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call, from request to recorded step."""
        started = time.perf_counter()
        started_us = now_us()
        try:
            identity = identify(scope["headers"], self._settings)
            body = await read_body(receive)
            request = parse_request(body)
        except Disconnected:
            self._metrics.calls_disconnected.inc()
            return
        except GatewayError as error:
            self._metrics.calls_refused.inc()
            await respond_error(send, error)
            return
        index = self._contexts.begin(identity.trajectory_id, identity.step_index)
        call = Call(identity, request, index, new_event_id(), started_us)
        hangup = Hangup(receive)
        try:
            await self._pass_on(call, started, body, forwarded(scope["headers"]), send, hangup)
        except asyncio.CancelledError:
            self._metrics.calls_disconnected.inc()
            if not hangup.gone:
                raise
        finally:
            hangup.stop()
            self._metrics.call_seconds.observe(time.perf_counter() - started)

    async def _pass_on(
        self, call: Call, started: float, body: bytes, headers: list[tuple[str, str]], send: Send, hangup: Hangup
    ) -> None:
        ours: Headers = [(b"x-stepstream-trajectory", call.identity.trajectory_id.encode())]
        try:
            reply = await self._upstreams.send("POST", PATH, with_additions(body, call.request), headers)
        except BaseException as error:
            # Nobody answered, so no step happened: the next call of this trajectory gets the index.
            self._contexts.give_back(call.identity.trajectory_id, call.step_index)
            if not isinstance(error, NoUpstream):
                raise
            self._metrics.calls_unanswered.inc()
            hangup.stop()
            await respond_error(send, error, ours)
            return
        ours.append((b"x-stepstream-step", b"%d" % call.step_index))  # only where a step is recorded
        asked = Asked(bool(call.request.get("logprobs")), bool(call.request.get("return_token_ids")))
        if reply.streaming:
            await self._stream(call, started, reply, asked, ours, send, hangup)
            return
        answer, out = _whole(reply, asked)
        hangup.stop()
        try:
            await respond(send, reply.status, out, (reply.headers or [JSON]) + ours)
        finally:
            self._record(call, answer, Timing(_ms_since(started)))

    async def _stream(
        self, call: Call, started: float, reply: Reply, asked: Asked, ours: Headers, send: Send, hangup: Hangup
    ) -> None:
        stream = _Stream(asked, started)
        error: str | None = None
        try:
            await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers + ours})
            chunk = reply.body
            while chunk:
                out = stream.feed(chunk)
                if out:
                    await send({"type": "http.response.body", "body": out, "more_body": True})
                chunk = await reply.more()
            hangup.stop()
            await send({"type": "http.response.body", "body": stream.rest(), "more_body": False})
        except asyncio.CancelledError:
            error = "client_disconnected"
            raise
        except StreamBroke as fault:
            error = "upstream_disconnected"
            hangup.stop()
            told = error_body(str(fault), error)
            await send({"type": "http.response.body", "body": b"data: " + told + b"\n\n", "more_body": False})
        finally:
            reply.close()
            answer = stream.gathered.answer()
            if error is not None or (answer.error is None and not answer.finish_reason):
                answer.error, answer.finish_reason = error or "incomplete_stream", "error"
            self._record(call, answer, Timing(_ms_since(started), stream.first_token_ms))

    def _record(self, call: Call, answer: Answer, timing: Timing) -> None:
        identity = call.identity
        before = self._contexts.before(identity.trajectory_id, call.step_index)
        try:
            step, context = step_of(call, answer, before, timing, self._producer)
        except Exception:  # whatever an upstream may send, the agent's call goes well
            log.exception("step %d of trajectory %s cannot be recorded", call.step_index, identity.trajectory_id)
            self._metrics.events_lost.inc()
        else:
            self._contexts.remember(identity.trajectory_id, context)
            headers = {"traceparent": identity.traceparent} if identity.traceparent else None
            self._publisher.publish(Event("steps", identity.trajectory_id, step, headers))
        (self._metrics.calls_ok if answer.error is None else self._metrics.calls_error).inc()
        if answer.choices > 1:
            self._metrics.choices_unrecorded.inc(answer.choices - 1)


class _Stream:
    """One streamed answer on its way: gathers it, and gives out what the caller is to get."""

    def __init__(self, asked: Asked, started: float) -> None:
        self.gathered = StreamedAnswer()
        self.first_token_ms: float | None = None
        self._parser = EventParser()
        self._asked = asked
        self._started = started

    def feed(self, chunk: bytes) -> bytes:
        """Takes in bytes; returns what goes on to the caller."""
        return b"".join([self._event(event) for event in self._parser.feed(chunk)])

    def rest(self) -> bytes:
        """What an upstream left without an end."""
        return self._parser.rest()

    def _event(self, event: ServerSentEvent) -> bytes:
        if event.data is None or event.data == b"[DONE]":
            return event.raw
        try:
            chunk = orjson.loads(event.data)
        except orjson.JSONDecodeError:
            return event.raw
        if not isinstance(chunk, dict):
            return event.raw
        try:
            spoke = self.gathered.add(chunk)
        except (TypeError, ValueError, AttributeError, LookupError):
            self.gathered.error = "malformed_response"  # the caller's to judge: it goes on as it is
            return event.raw
        if spoke and self.first_token_ms is None:
            self.first_token_ms = _ms_since(self._started)
        return b"data: %b\n\n" % orjson.dumps(chunk) if strip(chunk, self._asked) else event.raw


def parse_request(body: bytes) -> dict[str, Any]:
    """The request of a call.

    Raises:
        BadRequest: not a JSON object.
    """
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(request, dict):
        raise BadRequest("the body must be a JSON object")
    return request


def with_additions(body: bytes, request: dict[str, Any]) -> bytes:
    """The body to send on: the caller's own bytes, asking for token ids and logprobs as well."""
    missing = [name for name in ADDITIONS if request.get(name) is not True]
    if not missing:
        return body
    if request and not any(name in request for name in missing):
        end = body.rindex(b"}")
        return body[:end] + b"".join([b',"%b":true' % name.encode() for name in missing]) + b"}"
    return orjson.dumps(request | dict.fromkeys(missing, True))


def forwarded(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """The headers of a call that its upstream gets too."""
    kept = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers if name in _FORWARDED]
    kept.append(("content-type", "application/json"))
    return kept


def _whole(reply: Reply, asked: Asked) -> tuple[Answer, bytes]:
    """The answer in a reply that is no stream, and the body for the caller."""
    try:
        body = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        body = None
    if reply.status >= 400:
        return failed(error_class(body, reply.status)), reply.body
    if not isinstance(body, dict):
        return failed("malformed_response"), reply.body
    answer = answer_of(body)
    return answer, orjson.dumps(body) if strip(body, asked) else reply.body


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000.0
