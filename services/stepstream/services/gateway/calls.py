"""Handle a model call in any protocol: send it to an upstream, relay the answer, record the step.

The step is in the spool before the answer's last byte leaves; see `recorder.py`.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import orjson
from uuid_utils import uuid4

from stepstream.config import GatewaySettings
from stepstream.core.lenient_json import is_too_deep
from stepstream.core.tracing import Tracing
from stepstream.services.gateway.api_keys import CALLS, ApiKeys, credentials_of
from stepstream.services.gateway.call_plan import CallPlan, CallPlanner, model_of, parse_request
from stepstream.services.gateway.context.cache import ContextCache
from stepstream.services.gateway.context.carried_calls import CarriedCalls
from stepstream.services.gateway.context.saved_responses import SavedResponses
from stepstream.services.gateway.context.tree import AnsweredTrack, Endings, StepIndices
from stepstream.services.gateway.errors import (
    GatewayError,
    MalformedResponse,
    NestedTooDeeply,
    Overloaded,
    UpstreamDied,
    UpstreamSilent,
)
from stepstream.services.gateway.fallbacks import send_call
from stepstream.services.gateway.harness import HarnessChooser
from stepstream.services.gateway.http.asgi import (
    JSON,
    CancelOnDisconnect,
    Disconnected,
    Headers,
    Receive,
    Scope,
    Send,
    read_body,
    respond,
    respond_error,
)
from stepstream.services.gateway.http.client import Reply, StreamInterrupted
from stepstream.services.gateway.identity import identify
from stepstream.services.gateway.key_usage import KeyCounts
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.protocols.base import Answer, ModelProtocol, error_class, failed_answer
from stepstream.services.gateway.publisher import Publisher
from stepstream.services.gateway.recorder import Recorder
from stepstream.services.gateway.step_builder import Timing
from stepstream.services.gateway.streams import (
    PARSE_ERRORS,
    NativeRelay,
    StreamRelay,
    TranslatedRelay,
    error_message,
    parse_object,
    rename_model,
)
from stepstream.services.gateway.tracks import TrackChooser
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
        keys: ApiKeys,
        metrics: Metrics,
        producer: str,
        indices: StepIndices,
        endings: Endings,
        carried: CarriedCalls,
        saved_responses: SavedResponses,
        tracks: TrackChooser,
        harnesses: HarnessChooser,
        counts: KeyCounts,
        tracing: Tracing | None = None,
    ) -> None:
        """`producer`: program that writes the events, as `gateway/0.1.0`; `tracing`: None if it is off."""
        self._settings = settings
        self._keys = keys
        self._metrics = metrics
        contexts = ContextCache(settings.context_cache, settings.context_bytes, lambda: str(uuid4()), indices, endings)
        self._planner = CallPlanner(
            upstreams,
            contexts,
            saved_responses,
            metrics,
            tracks,
            harnesses,
            keys.check_model,
            settings.train_sampling,
            settings.sampling_mask_ids,
        )
        self._recorder = Recorder(contexts, saved_responses, publisher, metrics, producer, carried, counts, tracing)

    async def __call__(self, scope: Scope, receive: Receive, send: Send, protocol: ModelProtocol, session: str) -> None:
        """Handle one call, from request to recorded step; `session`: the one in its path, or empty."""
        started = time.perf_counter()
        started_us = now_us()
        try:
            credentials = credentials_of(scope["headers"])
            grant = self._keys.authorize(credentials, CALLS)
            identity = identify(scope["headers"], self._settings, session or credentials.session, grant)
            body = await read_body(receive)
            request = parse_request(body)
            self._keys.check_model(grant, model_of(request))
            try:
                plan = self._planner.plan(protocol, request, body, identity, grant, started_us)
            except TypeError:
                if is_too_deep(request):
                    raise NestedTooDeeply from None
                raise
            if scope["query_string"] and plan.translation is None:
                plan.path += "?" + scope["query_string"].decode("latin-1")
        except Disconnected:
            self._metrics.calls_disconnected.inc()
            return
        except GatewayError as error:
            (self._metrics.calls_overloaded if isinstance(error, Overloaded) else self._metrics.calls_refused).inc()
            await respond_error(send, error, protocol.error_body(str(error), error.type, error.code, error.param))
            return
        except Exception:
            log.exception("refused a %s call: the gateway failed to read it", protocol.name)
            self._metrics.calls_refused.inc()
            fault = GatewayError("the gateway failed on this request; its log says how")
            await respond_error(send, fault, protocol.error_body(str(fault), fault.type))
            return
        canceller = CancelOnDisconnect(scope)
        try:
            reply = send_call(plan, scope["headers"], credentials, self._settings.upstream_deadline_s, self._metrics)
            await self._forward(plan, started, reply, send, canceller)
        except asyncio.CancelledError:
            if not canceller.disconnected:
                raise
        finally:
            canceller.stop()
            self._metrics.call_seconds.observe(time.perf_counter() - started)

    async def _forward(
        self,
        plan: CallPlan,
        started: float,
        call: Coroutine[Any, Any, Reply],
        send: Send,
        canceller: CancelOnDisconnect,
    ) -> None:
        position = plan.call.position
        step_headers: Headers = [
            (b"x-stepstream-trajectory", position.trajectory.id.encode()),
            (b"x-stepstream-step", b"%d" % position.step_index),
        ]
        if plan.tool_versions:
            step_headers.append((b"x-stepstream-tool-versions", plan.tool_versions.encode()))
        try:
            reply = await call
            self._note_route(plan, reply.status)
        except GatewayError as error:
            canceller.stop()
            try:
                await respond_error(send, error, plan.protocol.error_body(str(error), error.type), step_headers)
            finally:
                self._recorder.record(plan, failed_answer(error.type), Timing(_ms_since(started)))
            return
        except BaseException as error:
            # The step index is reserved, and later ones may be in use: without a step there would be a gap.
            self._recorder.record(plan, failed_answer(_error_class_of(error, canceller)), Timing(_ms_since(started)))
            raise
        if reply.streaming:
            await self._relay(plan, started, reply, step_headers, send, canceller)
            return
        answer, status, body = _read_reply(plan, reply)
        canceller.stop()
        await self._recorder.record(plan, answer, Timing(_ms_since(started)))
        headers = reply.headers if plan.translation is None else _without_content(reply.headers)
        await respond(send, status, body, (headers or [JSON]) + step_headers)

    def _note_route(self, plan: CallPlan, status: int) -> None:
        """Remember the worker and the track of a call, once they are known."""
        route, trajectory = plan.route, plan.call.position.trajectory
        if route.served_name:
            plan.requested = replace(plan.requested, model=route.model)
        if route.preferred:
            trajectory.worker = route.preferred
            trajectory.track = AnsweredTrack(route.model, route.track, route.canary_version)
            if status < 400:  # a model's name that no worker knows must not become a label
                self._metrics.count_track(route.model, route.track)

    async def _relay(
        self,
        plan: CallPlan,
        started: float,
        reply: Reply,
        step_headers: Headers,
        send: Send,
        canceller: CancelOnDisconnect,
    ) -> None:
        relay: StreamRelay = (
            NativeRelay(plan.protocol, plan.requested, started, plan.response_ids)
            if plan.translation is None
            else TranslatedRelay(plan.protocol, plan.translation, plan.requested, started)
        )
        error: str | None = None
        last = b""
        try:
            await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers + step_headers})
            last = relay.feed(reply.body)
            while not reply.complete:
                if last:
                    await send({"type": "http.response.body", "body": last, "more_body": True})
                last = relay.feed(await reply.more())
            last += relay.end()
        except asyncio.CancelledError as fault:
            error = _error_class_of(fault, canceller)
            raise
        except StreamInterrupted as fault:
            error = UpstreamSilent.type if fault.silent else UpstreamDied.type
            last = relay.end_with_error(str(fault), error)
        finally:
            canceller.stop()
            reply.close()
            answer = _streamed_answer(relay)
            for each in answer.all_choices():
                if error is not None or (each.error is None and not each.finish_reason):
                    each.error, each.finish_reason = error or "incomplete_stream", "error"
            recorded = self._recorder.record(plan, answer, Timing(_ms_since(started), relay.first_token_ms))
        await recorded
        await send({"type": "http.response.body", "body": last, "more_body": False})


def _read_reply(plan: CallPlan, reply: Reply) -> tuple[Answer, int, bytes]:
    """Return the answer in a reply that is no stream, and status and body for the caller."""
    body = parse_object(reply.body)
    translation = plan.translation
    if reply.status >= 400:
        kind = error_class(body, reply.status)
        if translation is None:
            return failed_answer(kind), reply.status, reply.body
        return failed_answer(kind), reply.status, plan.protocol.error_body(error_message(body), kind)
    try:
        if body is None:
            raise ValueError
        renamed = rename_model(body, plan.requested)
        if plan.response_ids is not None:
            renamed |= plan.response_ids.tag_reply(body)
        answer = plan.upstream_protocol.answer(body)
        if translation is None:
            stripped = plan.upstream_protocol.strip(body, plan.requested)
            return answer, reply.status, orjson.dumps(body) if stripped or renamed else reply.body
        if answer.error is not None:
            raise ValueError
        translated = translation.reply(body)
        answer.response_id, answer.items = str(translated.get("id") or ""), translation.items
        return answer, reply.status, orjson.dumps(translated)
    except PARSE_ERRORS:
        if translation is None:
            return failed_answer("malformed_response"), reply.status, reply.body
        fault = MalformedResponse("the upstream's answer cannot be read")
        return failed_answer(fault.type), fault.status, plan.protocol.error_body(str(fault), fault.type)


def _without_content(headers: Headers) -> Headers:
    """Return an upstream's headers for another body than its own."""
    return [*[header for header in headers if not header[0].startswith(b"content-")], JSON]


def _streamed_answer(relay: StreamRelay) -> Answer:
    """Return a stream's answer; an unreadable one is an error in the step, not in the call."""
    try:
        return relay.answer()
    except PARSE_ERRORS:
        log.exception("a streamed answer cannot be read: its step is recorded with the error malformed_response")
        return failed_answer("malformed_response")


def _error_class_of(error: BaseException, canceller: CancelOnDisconnect) -> str:
    """Return the class of the error that ended a call before its answer."""
    if not isinstance(error, asyncio.CancelledError):
        return GatewayError.type
    return "client_disconnected" if canceller.disconnected else "gateway_stopped"


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000.0
