"""The gateway as an ASGI application: what answers where."""

import logging
from collections.abc import Awaitable, Callable
from importlib.metadata import version

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from stepstream.config import Settings
from stepstream.services.gateway import feedback
from stepstream.services.gateway.asgi import (
    JSON,
    Disconnected,
    Receive,
    Scope,
    Send,
    read_body,
    respond,
    respond_error,
)
from stepstream.services.gateway.chat import PATH as CHAT
from stepstream.services.gateway.chat import ChatCompletions, forwarded
from stepstream.services.gateway.errors import GatewayError, NotAccepted
from stepstream.services.gateway.identity import identify
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.publisher import Event, Publisher
from stepstream.services.gateway.upstreams import Upstreams
from stepstream.topics.ids import now_us

log = logging.getLogger(__name__)

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]
MODELS = "/v1/models"


class NotFound(GatewayError):
    """Nothing answers here."""

    status = 404
    type = "invalid_request_error"


class MethodNotAllowed(GatewayError):
    """Something answers here, but not to this method."""

    status = 405
    type = "invalid_request_error"


class GatewayApp:
    """One gateway. It serves before, and whether or not, Kafka and the registry can be reached."""

    def __init__(self, settings: Settings, publisher: Publisher | None = None, metrics: Metrics | None = None) -> None:
        self.metrics = metrics or Metrics()
        self._settings = settings
        self._producer = f"gateway/{version('stepstream')}"
        self._publisher = publisher or Publisher(settings, self._producer, self.metrics)
        self._upstreams: Upstreams | None = None
        self._routes: dict[str, tuple[str, Handler]] = {
            "/v1/feedback": ("POST", self._feedback),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._metrics_page),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, or the application's life."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            return
        method, handler = self._routes.get(scope["path"]) or ("", None)
        if handler is None and scope["path"].startswith(MODELS + "/"):
            method, handler = self._routes[MODELS]
        try:
            if handler is None:
                raise NotFound(f"nothing answers at {scope['path']}; there are {', '.join(self._routes)}")
            if scope["method"] != method:
                raise MethodNotAllowed(f"{scope['path']} takes {method}, not {scope['method']}")
        except GatewayError as error:
            await respond_error(send, error)
            return
        await handler(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._upstreams = Upstreams(self._settings.gateway, self.metrics)
        chat = ChatCompletions(self._settings.gateway, self._upstreams, self._publisher, self.metrics, self._producer)
        self._routes[CHAT] = ("POST", chat)
        self._routes[MODELS] = ("GET", self._models)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._upstreams.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._upstreams is not None
        try:
            reply = await self._upstreams.send("GET", scope["path"], None, forwarded(scope["headers"]))
        except GatewayError as error:
            await respond_error(send, error)
            return
        await respond(send, reply.status, reply.body, reply.headers)

    async def _feedback(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            identity = identify(scope["headers"], self._settings.gateway)
            items, several = feedback.parse(await read_body(receive))
            at = now_us()
            events = [feedback.event_of(item, identity, at, self._producer) for item in items]
            headers = {"traceparent": identity.traceparent} if identity.traceparent else None
            kept = [self._publisher.publish(Event("feedback", e["trajectory_id"], e, headers)) for e in events]
            if not all(kept):
                raise NotAccepted("Kafka has been away for too long and memory is full: post it again later")
        except Disconnected:
            return
        except GatewayError as error:
            await respond_error(send, error)
            return
        ids = [event["event_id"] for event in events]
        body = orjson.dumps({"event_ids": ids} if several else {"event_id": ids[0]})
        await respond(send, 202, body, [JSON])

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        upstreams = self._upstreams.pool.upstreams if self._upstreams else []
        body = {
            "status": "ok",
            "upstreams": [{"url": u.url, "in_flight": u.in_flight, "fault": u.fault or None} for u in upstreams],
            "events_waiting": self._publisher.waiting(),
        }
        await respond(send, 200, orjson.dumps(body), [JSON])

    async def _metrics_page(self, scope: Scope, receive: Receive, send: Send) -> None:
        for upstream in self._upstreams.pool.upstreams if self._upstreams else []:
            self.metrics.in_flight.labels(upstream.url).set(upstream.in_flight)
        page = generate_latest(self.metrics.registry)
        await respond(send, 200, page, [(b"content-type", CONTENT_TYPE_LATEST.encode())])
