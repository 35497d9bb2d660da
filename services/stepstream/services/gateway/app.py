"""Route requests to the handlers of calls, feedback, OpenTelemetry, readiness, metrics and other model APIs (ASGI)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from urllib.parse import unquote

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from stepstream.config import Settings
from stepstream.core.prices import Prices
from stepstream.core.slices import Work, in_slices
from stepstream.core.tracing import open_tracing
from stepstream.crypto.erasures import ErasureCheck
from stepstream.services.gateway import feedback
from stepstream.services.gateway.api_keys import ApiKeys, credentials_of
from stepstream.services.gateway.calls import CallHandler
from stepstream.services.gateway.context.carried_calls import CarriedCalls
from stepstream.services.gateway.context.encrypted_store import EncryptedStore
from stepstream.services.gateway.context.endings import EndingFile
from stepstream.services.gateway.context.saved_responses import SavedResponses
from stepstream.services.gateway.context.step_indices import StepIndexFile
from stepstream.services.gateway.errors import GatewayError, MethodNotAllowed, NotAccepted, NotFound
from stepstream.services.gateway.grant import Grant
from stepstream.services.gateway.harness import HarnessChooser
from stepstream.services.gateway.http.asgi import (
    JSON,
    Disconnected,
    Receive,
    Scope,
    Send,
    read_body,
    respond,
    respond_error,
)
from stepstream.services.gateway.identity import Identity, identify
from stepstream.services.gateway.key_usage import KeyCounts
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.otlp.receiver import PATHS as OTLP_PATHS
from stepstream.services.gateway.otlp.receiver import OtlpReceiver
from stepstream.services.gateway.passthrough import PassThrough
from stepstream.services.gateway.protocols.anthropic.protocol import ANTHROPIC
from stepstream.services.gateway.protocols.base import ModelProtocol
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.services.gateway.protocols.responses.protocol import RESPONSES
from stepstream.services.gateway.publisher import Event, Publisher
from stepstream.services.gateway.readiness import GatewayState
from stepstream.services.gateway.routing import split_session, with_version
from stepstream.services.gateway.tracks import TrackChooser
from stepstream.services.gateway.upstreams import Upstreams
from stepstream.services.gateway.worker_status import WorkerFollower
from stepstream.services.posted_feedback import PostedFeedback
from stepstream.topics.catalogue import API_KEYS, ERASURES, FEEDBACK, HARNESSES, KEY_USAGE, ROLLOUTS
from stepstream.topics.ids import now_us
from stepstream.topics.probe import KafkaProbe
from stepstream.topics.table import Table
from stepstream.topics.trusted_sources import VERDICTS_SCOPE

log = logging.getLogger(__name__)

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]
_PUBLISH_USE_S = 1.0
"""Time between two publications of the use of API keys."""
PROTOCOLS: tuple[ModelProtocol, ...] = (CHAT, RESPONSES, ANTHROPIC)


class GatewayApp:
    """One gateway. It serves at once, even while Kafka or the registry cannot be reached."""

    def __init__(self, settings: Settings, publisher: Publisher | None = None, metrics: Metrics | None = None) -> None:
        self.metrics = metrics or Metrics()
        self._settings = settings
        self._producer = f"gateway/{version('stepstream')}"
        self._publisher = publisher or Publisher(settings, self._producer, self.metrics)
        self._upstreams: Upstreams
        self._keys: ApiKeys
        self._key_table: Table
        self._kafka = KafkaProbe(settings.kafka)
        self._calls: CallHandler
        self._other_apis: PassThrough
        self._protocols = {protocol.path: protocol for protocol in PROTOCOLS}
        self._routes: dict[str, tuple[str, Handler]] = {
            "/v1/feedback": ("POST", self._feedback),
            "/health": ("GET", self._health),
            "/ready": ("GET", self._ready),
            "/metrics": ("GET", self._metrics_page),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or run from startup to shutdown."""
        if scope["type"] == "lifespan":
            await self._run(receive, send)
            return
        if scope["type"] != "http":
            return
        session, path = split_session(scope["path"])
        # Base addresses of clients may or may not end with /v1.
        protocol = self._protocols.get(path) or self._protocols.get("/v1" + path)
        try:
            if protocol is not None:
                _check_method(scope, "POST")
                await self._calls(scope, receive, send, protocol, session)
            elif path in self._routes:
                method, handler = self._routes[path]
                _check_method(scope, method)
                await handler(scope, receive, send)
            else:
                await self._pass_through(scope, receive, send, path)
        except GatewayError as error:
            await respond_error(send, error)

    async def _run(self, receive: Receive, send: Send) -> None:
        await receive()
        gateway = self._settings.gateway
        self._upstreams = Upstreams(gateway, self.metrics)
        workers = WorkerFollower(self._settings, self._upstreams.workers.pool) if gateway.find_workers else None
        # API keys and rollouts are known while Kafka is away, from the snapshot of the last change.
        snapshots = self._settings.paths.data / "gateway"
        api_keys = self._key_table = Table(self._settings, API_KEYS, snapshot=snapshots / "api-keys.json")
        usage = Table(self._settings, KEY_USAGE, snapshot=snapshots / "key-usage.json")
        counts = KeyCounts(usage, Prices(gateway.prices), self._producer)
        publishing = asyncio.create_task(self._publish_counts(counts))
        self._keys = ApiKeys(api_keys, counts, required=gateway.keys_required)
        folder = self._settings.gateway_spool
        indices, endings, carried = StepIndexFile(folder), EndingFile(folder), CarriedCalls(folder)
        store = EncryptedStore(folder, gateway.history_bytes, gateway.history_days * 86_400)
        erasures = Table(self._settings, ERASURES)
        rollouts = Table(self._settings, ROLLOUTS, snapshot=snapshots / "rollouts.json")
        harnesses = Table(self._settings, HARNESSES, snapshot=snapshots / "harnesses.json")
        tracing = open_tracing(self._settings, "gateway")
        self._calls = CallHandler(
            gateway,
            self._upstreams,
            self._publisher,
            self._keys,
            self.metrics,
            self._producer,
            indices,
            endings,
            carried,
            SavedResponses(store, ErasureCheck(self._settings, erasures)),
            TrackChooser(rollouts),
            HarnessChooser(harnesses),
            counts,
            tracing,
        )
        self._other_apis = PassThrough(self._upstreams, self._keys, counts)
        otlp = OtlpReceiver(
            self._settings, self._publisher, self.metrics.registry, self._producer, self._otlp_grant, carried
        )
        otlp.start()
        self._routes |= dict.fromkeys(OTLP_PATHS, ("POST", otlp))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await otlp.close()
        if workers is not None:
            workers.close()
        await self._upstreams.close()
        publishing.cancel()
        self._publish_use(counts)
        usage.close()
        api_keys.close()
        erasures.close()
        rollouts.close()
        harnesses.close()
        indices.close()
        endings.close()
        carried.close()
        store.close()
        if tracing is not None:
            await asyncio.to_thread(tracing.close)
        await send({"type": "lifespan.shutdown.complete"})

    async def _publish_counts(self, counts: KeyCounts) -> None:
        while True:
            await asyncio.sleep(_PUBLISH_USE_S)
            self._publish_use(counts)

    def _publish_use(self, counts: KeyCounts) -> None:
        for name, record in counts.unpublished():
            self._publisher.publish(Event(KEY_USAGE, name, record))

    def _otlp_grant(self, scope: Scope) -> Grant:
        return self._keys.authorize(credentials_of(scope["headers"]), "otlp")

    async def _pass_through(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        full_path = with_version(path)
        raw_path = with_version(split_session(scope["raw_path"].decode("latin-1"))[1])
        # A separator that is encoded in one of them could make the permitted path another than the requested one.
        if full_path is None or raw_path is None or unquote(raw_path) != full_path:
            known = ", ".join([*self._protocols, *self._routes])
            raise NotFound(f"nothing answers at {path}; there are {known}, and other model APIs under /v1/")
        await self._other_apis(scope, receive, send, full_path, raw_path)

    async def _feedback(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            credentials = credentials_of(scope["headers"])
            grant = self._keys.authorize(credentials, "feedback")
            identity = identify(scope["headers"], self._settings.gateway, grant=grant)
            feedback.check_content_type(scope["headers"])
            items, is_list = await in_slices(feedback.parse_feedback(await read_body(receive)))
            # The label job trusts a verdict by its producer, which no caller can choose.
            is_trusted = self._keys.has_scope(credentials, VERDICTS_SCOPE)
            producer = f"{VERDICTS_SCOPE}/{credentials.key_id}" if is_trusted else self._producer
            event_ids, accepted = await in_slices(self._publish_feedback(items, identity, producer, grant))
            if not accepted:
                raise NotAccepted("the backlog is full, since Kafka cannot be reached: post it again later")
        except Disconnected:
            return
        except GatewayError as error:
            await respond_error(send, error)
            return
        body = orjson.dumps({"event_ids": event_ids} if is_list else {"event_id": event_ids[0]})
        await respond(send, 202, body, [JSON])

    def _publish_feedback(
        self, items: list[PostedFeedback], identity: Identity, producer: str, grant: Grant
    ) -> Work[tuple[list[str], bool]]:
        """Publish items; return the ids of their events, and True if none was dropped."""
        received_us = now_us()
        headers = {"traceparent": identity.traceparent} if identity.traceparent else None
        event_ids = []
        accepted = True
        for item in items:
            event = feedback.feedback_event(item, identity, received_us, producer, grant)
            event_ids.append(event["event_id"])
            accepted &= self._publisher.publish(Event(FEEDBACK, event["trajectory_id"], event, headers))
            yield
        return event_ids, accepted

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        upstreams = self._upstreams.all()
        body = {
            "status": "ok",
            "upstreams": [{"url": u.url, "in_flight": u.in_flight, "fault": u.fault or None} for u in upstreams],
            "events_waiting": self._publisher.waiting(),
        }
        await respond(send, 200, orjson.dumps(body), [JSON])

    async def _ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        keys_current = self._key_table.current
        state = GatewayState(
            spool_share=self._publisher.spool_share(),
            events_waiting=self._publisher.waiting(),
            kafka_fault=await asyncio.to_thread(self._kafka.fault),
            keys_current=keys_current,
            keys_known=keys_current or bool(self._key_table.items()) or not self._settings.gateway.keys_required,
            upstreams=self._upstreams.available(),
        )
        body = state.body()
        await respond(send, 200 if body["ready"] else 503, orjson.dumps(body), [JSON])

    async def _metrics_page(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = self._settings.gateway
        if gateway.processes > 1 and scope["server"][1] == gateway.port:
            last = gateway.metrics_port + gateway.processes - 1
            raise NotFound(f"each gateway process has its own metrics, at the ports {gateway.metrics_port} to {last}")
        self._upstreams.workers.count_states()
        self.metrics.in_flight.clear()
        for upstream in self._upstreams.all():
            self.metrics.in_flight.labels(upstream.url).set(upstream.in_flight)
        page = generate_latest(self.metrics.registry) + generate_latest()
        await respond(send, 200, page, [(b"content-type", CONTENT_TYPE_LATEST.encode())])


def _check_method(scope: Scope, method: str) -> None:
    if scope["method"] != method:
        raise MethodNotAllowed(f"{scope['path']} takes {method}, not {scope['method']}")
