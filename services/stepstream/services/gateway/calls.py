"""One model call, in whichever protocol: pass it on, give the answer back, record the step.

What is known of an answer is on disk before its last byte leaves, see `recorder.py`.
"""

import asyncio
import logging
import time
from typing import Any

import orjson
from uuid_utils import uuid4

from stepstream.config import GatewaySettings
from stepstream.services.gateway.api_keys import Keys, credentials_of
from stepstream.services.gateway.call_plan import CallPlan, CallPlanner, parse_request
from stepstream.services.gateway.context.cache import ContextCache
from stepstream.services.gateway.context.saved_responses import SavedResponses
from stepstream.services.gateway.context.tree import Indices
from stepstream.services.gateway.errors import GatewayError, UpstreamDied, UpstreamSilent
from stepstream.services.gateway.http.asgi import (
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
from stepstream.services.gateway.http.client import Reply, StreamBroke
from stepstream.services.gateway.identity import identify
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.protocols.base import Answer, ModelProtocol, error_class, failed
from stepstream.services.gateway.publisher import Publisher
from stepstream.services.gateway.recorder import Recorder
from stepstream.services.gateway.step_builder import Timing
from stepstream.services.gateway.streams import (
    READING_FAULTS,
    Native,
    StreamRelay,
    Translated,
    error_message,
    json_object,
)
from stepstream.services.gateway.upstreams import Upstreams
from stepstream.topics.ids import now_us

log = logging.getLogger(__name__)


class CallHandler:
    """Handles model calls."""

    def __init__(
        self,
        settings: GatewaySettings,
        upstreams: Upstreams,
        publisher: Publisher,
        keys: Keys,
        metrics: Metrics,
        producer: str,
        indices: Indices,
        histories: SavedResponses,
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._metrics = metrics
        contexts = ContextCache(settings.context_cache, settings.context_bytes, lambda: str(uuid4()), indices)
        self._planner = CallPlanner(upstreams, contexts, histories, metrics)
        self._recorder = Recorder(contexts, histories, publisher, metrics, producer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send, protocol: ModelProtocol, session: str) -> None:
        """One call, from request to recorded step; `session`: the key in its path, or empty."""
        started = time.perf_counter()
        started_us = now_us()
        try:
            shown = credentials_of(scope["headers"])
            tenant = self._keys.tenant(shown, "calls")
            identity = identify(scope["headers"], self._settings, session or shown.session, tenant)
            body = await read_body(receive)
            plan = self._planner.plan(protocol, parse_request(body), body, identity, shown, started_us)
            if scope["query_string"] and plan.translation is None:
                plan.path += "?" + scope["query_string"].decode("latin-1")
        except Disconnected:
            self._metrics.calls_disconnected.inc()
            return
        except GatewayError as error:
            self._metrics.calls_refused.inc()
            await respond_error(send, error, protocol.error_body(str(error), error.type, error.code, error.param))
            return
        except Exception:
            log.exception("a %s call cannot be understood", protocol.name)
            self._metrics.calls_refused.inc()
            fault = GatewayError("the gateway failed on this request; its log says how")
            await respond_error(send, fault, protocol.error_body(str(fault), fault.type))
            return
        hangup = Hangup(scope)
        try:
            await self._pass_on(
                plan, started, plan.target.headers(scope["headers"], shown, plan.spoken.name), send, hangup
            )
        except asyncio.CancelledError:
            if not hangup.gone:
                raise
        finally:
            hangup.stop()
            self._metrics.call_seconds.observe(time.perf_counter() - started)

    async def _pass_on(self, plan: CallPlan, started: float, headers: Any, send: Send, hangup: Hangup) -> None:
        place = plan.call.place
        ours: Headers = [
            (b"x-stepstream-trajectory", place.trajectory.id.encode()),
            (b"x-stepstream-step", b"%d" % place.step_index),
        ]
        try:
            reply = await plan.target.send("POST", plan.path, plan.body, headers)
        except GatewayError as error:
            hangup.stop()
            try:
                await respond_error(send, error, plan.protocol.error_body(str(error), error.type), ours)
            finally:
                self._recorder.record(plan, failed(error.type), Timing(_ms_since(started)))
            return
        except BaseException as error:
            # Its index is taken, maybe with later ones beside it: without a step it would be a gap.
            self._recorder.record(plan, failed(_broken_off(error, hangup)), Timing(_ms_since(started)))
            raise
        if reply.streaming:
            await self._stream(plan, started, reply, ours, send, hangup)
            return
        answer, out = _whole(plan, reply)
        hangup.stop()
        await self._recorder.record(plan, answer, Timing(_ms_since(started)))
        await respond(send, reply.status, out, (reply.headers or [JSON]) + ours)

    async def _stream(
        self, plan: CallPlan, started: float, reply: Reply, ours: Headers, send: Send, hangup: Hangup
    ) -> None:
        passage: StreamRelay = (
            Native(plan.protocol, plan.asked, started)
            if plan.translation is None
            else Translated(plan.protocol, plan.translation, started)
        )
        error: str | None = None
        last = b""
        try:
            await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers + ours})
            last = passage.feed(reply.body)
            while not reply.whole:
                if last:
                    await send({"type": "http.response.body", "body": last, "more_body": True})
                last = passage.feed(await reply.more())
            last += passage.end()
        except asyncio.CancelledError as fault:
            error = _broken_off(fault, hangup)
            raise
        except StreamBroke as fault:
            error = UpstreamSilent.type if fault.silent else UpstreamDied.type
            last = passage.broke(str(fault), error)
        finally:
            hangup.stop()
            reply.close()
            answer = _spelled(passage)
            for each in answer.every():
                if error is not None or (each.error is None and not each.finish_reason):
                    each.error, each.finish_reason = error or "incomplete_stream", "error"
            recorded = self._recorder.record(plan, answer, Timing(_ms_since(started), passage.first_token_ms))
        await recorded
        await send({"type": "http.response.body", "body": last, "more_body": False})


def _whole(plan: CallPlan, reply: Reply) -> tuple[Answer, bytes]:
    """The answer in a reply that is no stream, and the body for the caller."""
    body = json_object(reply.body)
    translation = plan.translation
    if reply.status >= 400:
        kind = error_class(body, reply.status)
        if translation is None:
            return failed(kind), reply.body
        return failed(kind), plan.protocol.error_body(error_message(body), kind)
    try:
        if body is None:
            raise ValueError
        answer = plan.spoken.answer(body)
        if translation is None:
            return answer, orjson.dumps(body) if plan.spoken.strip(body, plan.asked) else reply.body
        told = translation.reply(body)
        answer.response_id, answer.items = str(told.get("id") or ""), translation.items
        return answer, orjson.dumps(told)
    except READING_FAULTS:
        if translation is None:
            return failed("malformed_response"), reply.body
        return failed("malformed_response"), plan.protocol.error_body(
            "the upstream's answer cannot be read", "malformed_response"
        )


def _spelled(passage: StreamRelay) -> Answer:
    """What a stream spelled; whatever it was, the call goes well and is recorded."""
    try:
        return passage.answer()
    except READING_FAULTS:
        log.exception("a streamed answer cannot be read")
        return failed("malformed_response")


def _broken_off(error: BaseException, hangup: Hangup) -> str:
    """The class of the error that ended a call before its answer."""
    if not isinstance(error, asyncio.CancelledError):
        return GatewayError.type
    return "client_disconnected" if hangup.gone else "gateway_stopped"


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000.0
