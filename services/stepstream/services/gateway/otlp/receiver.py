"""Receive OTLP over HTTP at `/v1/traces` and `/v1/logs`; answer 200 only after Kafka's acknowledgement."""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from stepstream.config import Settings
from stepstream.core.metrics import gateway as definitions
from stepstream.core.slices import Work, in_slices
from stepstream.crypto.key_ring import sealing_codec
from stepstream.delivery.confirmed_producer import NotDelivered
from stepstream.delivery.types import EncodedEvent
from stepstream.services.gateway.context.carried_calls import Carried
from stepstream.services.gateway.errors import GatewayError
from stepstream.services.gateway.grant import ANYTHING, Grant
from stepstream.services.gateway.http.asgi import Disconnected, Receive, Scope, Send, read_body, respond
from stepstream.services.gateway.otlp import wire
from stepstream.services.gateway.otlp.assembly import AssembledRecord, Assembler
from stepstream.services.gateway.otlp.fast_steps import PlainStepWriter
from stepstream.services.gateway.otlp.identity import Defaults
from stepstream.services.gateway.otlp.intake import Intake, IntakeResult
from stepstream.services.gateway.otlp.open_traces import OpenTraces
from stepstream.services.gateway.otlp.span_index import SpanIndex
from stepstream.services.gateway.otlp.trace import Trace
from stepstream.services.gateway.otlp.wire import Signal
from stepstream.topics.ids import new_event_id, now_us

log = logging.getLogger(__name__)

PATHS = ("/v1/traces", "/v1/logs")
RETRY_AFTER = (b"retry-after", b"2")
_topic_of = attrgetter("topic")

GrantOf = Callable[[Scope], Grant]
"""Returns what a request may do; raises GatewayError if its key lacks the scope."""


class Deliverer(Protocol):
    """Publishes events with confirmation."""

    async def deliver(self, events: Sequence[Any], timeout_s: float) -> None:
        """Return after all in-sync replicas have acknowledged all events.

        Raises:
            NotDelivered: some event may be missing.
        """
        ...


class NotAcknowledged(GatewayError):
    """Kafka has not acknowledged the request; exporters retry it."""

    status = 503
    type = "not_acknowledged"


class BodiesTooLarge(GatewayError):
    """The decompressed requests that wait for Kafka fill `http.bodies_mb`; exporters retry this one."""

    status = 503
    type = "server_error"


class Metrics:
    """The receiver's Prometheus metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = definitions.OTLP_REQUESTS.create(registry)
        self.records = definitions.OTLP_RECORDS.create(registry)
        self.rejected = definitions.OTLP_REJECTED.create(registry)


class OtlpReceiver:
    """An ASGI handler of both paths. `start` it in the serving event loop, and `close` it after."""

    def __init__(
        self,
        settings: Settings,
        publisher: Deliverer,
        registry: CollectorRegistry,
        producer: str,
        grant_of: GrantOf = lambda scope: ANYTHING,
        carried: Carried | None = None,
    ) -> None:
        """Set the program that writes the events, as `gateway/0.1.0`, and the calls that the gateway carried."""
        self._settings = settings
        self._publisher = publisher
        self._counts = Metrics(registry)
        self._grant_of = grant_of
        producer = f"otlp-{producer}"
        span_index = SpanIndex(settings.otlp.trajectories, new_event_id(), carried)
        self._assembler = Assembler(producer, span_index)
        self._lock = threading.Lock()  # guards the assembler's index: another thread publishes open traces
        self._turn = asyncio.Lock()  # one request after another, since the next may continue a trace of this one
        self._codec = sealing_codec(settings)
        self._open = OpenTraces(settings, self._codec, self._records, settings.gateway.agent)
        self._intake = Intake(self._assembler, PlainStepWriter(producer, span_index), producer, self._open.is_open)
        self._max_body_bytes = settings.otlp.max_body_mb * 1_048_576
        self._max_inflated_bytes = settings.http.bodies_mb * 1_048_576
        self._inflated_bytes = 0

    def start(self) -> None:
        """Start to publish open traces."""
        loop = asyncio.get_running_loop()
        timeout_s = self._settings.otlp.acknowledge_s

        def publish(records: list[AssembledRecord]) -> list[str]:
            reasons = asyncio.run_coroutine_threadsafe(self._deliver(records, timeout_s), loop).result()
            self._counts.rejected.labels("traces").inc(len(reasons))
            return reasons

        self._open.start(publish)

    async def close(self) -> None:
        """Stop the thread; unpublished traces stay in Kafka for the next gateway."""
        await asyncio.to_thread(self._open.close)
        self._codec.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        signal: Signal = "logs" if scope["path"].endswith("/logs") else "traces"
        kind = wire.PROTOBUF
        try:
            headers = wire.headers_of(scope["headers"])
            kind = headers.content_type
            result = await self._take(signal, headers, self._defaults(scope), receive)
        except Disconnected:
            return
        except GatewayError as error:
            self._counts.requests.labels(signal, str(error.status)).inc()
            retry = [RETRY_AFTER] if error.status == 503 else list(error.headers)
            answer = wire.error_body(error, kind)
            await respond(send, error.status, answer, [(b"content-type", kind.encode()), *retry])
            return
        self._count(signal, result)
        reply = wire.success_body(signal, kind, result.rejected, result.reason)
        await respond(send, 200, reply, [(b"content-type", kind.encode())])

    async def _take(self, signal: Signal, headers: wire.Headers, defaults: Defaults, receive: Receive) -> IntakeResult:
        """Read a request and deliver its records; return the result with all rejected items.

        Raises:
            GatewayError: the request is refused as a whole.
            Disconnected: the exporter disconnected.
        """
        body = await read_body(receive)
        inflated = 0
        try:
            async with self._turn:
                if headers.is_compressed:  # in the turn and in a thread: a small body may become a very large one
                    body = await asyncio.to_thread(wire.inflate, body, headers.encoding, self._max_body_bytes)
                    inflated = self._hold(len(body))
                result = await in_slices(self._read(signal, body, headers.content_type, defaults), self._lock)
            for reason in await self._deliver(result.records, self._settings.otlp.acknowledge_s):
                result.reject(reason)
        except NotDelivered as error:
            raise NotAcknowledged(f"Kafka has not acknowledged the request, send it again: {error}") from error
        finally:
            self._inflated_bytes -= inflated
        return result

    def _hold(self, size: int) -> int:
        """Count the bytes of a decompressed body, which the server does not count, and return them."""
        if self._inflated_bytes + size > self._max_inflated_bytes:
            raise BodiesTooLarge("the server holds too many large requests; try again later")
        self._inflated_bytes += size
        return size

    def _read(self, signal: Signal, body: bytes, kind: str, defaults: Defaults) -> Work[IntakeResult]:
        if signal == "traces":
            result = yield from self._intake.traces((yield from wire.traces(body, kind)), defaults, now_us())
        else:
            result = yield from self._intake.logs((yield from wire.logs(body, kind)), defaults, now_us())
        for trace_id in result.open_traces:
            self._open.expect(defaults.tenant, trace_id)
        return result

    def _defaults(self, scope: Scope) -> Defaults:
        gateway = self._settings.gateway
        grant = self._grant_of(scope)
        return Defaults(grant.tenant or gateway.tenant, gateway.consent, gateway.agent, grant.consent_ceiling)

    def _records(self, trace: Trace, defaults: Defaults) -> list[AssembledRecord]:
        with self._lock:
            return self._assembler.records(trace, defaults)

    async def _deliver(self, records: Sequence[AssembledRecord | EncodedEvent], timeout_s: float) -> list[str]:
        """Deliver all records; return why Kafka permanently rejected some, for example as too large.

        Raises:
            NotDelivered: Kafka may lack some, and may accept them later.
        """
        reasons: list[str] = []
        try:
            await self._publisher.deliver(records, timeout_s)
        except NotDelivered as error:
            if error.retry:
                raise
            for (
                record
            ) in records:  # one by one: only the faulty one fails, and resending the others gives the same events
                try:
                    await self._publisher.deliver([record], timeout_s)
                except NotDelivered as fault:
                    if fault.retry:
                        raise
                    reasons.append(str(fault))
        for topic, count in Counter(map(_topic_of, records)).items():
            self._counts.records.labels(topic).inc(count)
        return reasons

    def _count(self, signal: Signal, result: IntakeResult) -> None:
        self._counts.requests.labels(signal, "200").inc()
        if result.rejected:
            self._counts.rejected.labels(signal).inc(result.rejected)
            log.warning("rejected %d items of /v1/%s: %s", result.rejected, signal, result.reason)
