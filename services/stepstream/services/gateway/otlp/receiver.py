"""`/v1/traces` and `/v1/logs`: OTLP over HTTP, answered 200 only once Kafka has what was sent."""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import prometheus_client
from prometheus_client import CollectorRegistry

from stepstream.config import Settings
from stepstream.crypto.key_ring import codec_of
from stepstream.delivery.confirmed_producer import NotDelivered
from stepstream.delivery.types import EncodedEvent
from stepstream.services.gateway.errors import GatewayError
from stepstream.services.gateway.http.asgi import Disconnected, Receive, Scope, Send, read_body, respond
from stepstream.services.gateway.otlp import wire
from stepstream.services.gateway.otlp.assembly import AssembledRecord, Assembler
from stepstream.services.gateway.otlp.fast_steps import PlainSteps
from stepstream.services.gateway.otlp.identity import Defaults
from stepstream.services.gateway.otlp.intake import TOPIC, Intake, Taken
from stepstream.services.gateway.otlp.open_traces import OpenTraces
from stepstream.services.gateway.otlp.span_index import SpanIndex
from stepstream.services.gateway.otlp.trace import Trace
from stepstream.services.gateway.otlp.wire import Signal
from stepstream.topics.ids import now_us

log = logging.getLogger(__name__)

PATHS = ("/v1/traces", "/v1/logs")
RETRY_AFTER = (b"retry-after", b"2")

TenantOf = Callable[[Scope], str | None]
"""The tenant that a request's API key names, None without one; raises GatewayError where it may not send."""


class Deliverer(Protocol):
    """What the receiver needs of a publisher."""

    async def deliver(self, events: Sequence[Any], timeout_s: float) -> None:
        """Returns once Kafka has acknowledged all events, by all in-sync replicas.

        Raises:
            NotDelivered: it has not for sure.
        """
        ...


class NotAcknowledged(GatewayError):
    """Kafka does not have it; exporters send it again."""

    status = 503
    type = "not_acknowledged"


class Counts:
    """What the receiver counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = prometheus_client.Counter(
            "stepstream_otlp_requests", "OTLP requests by how they ended.", ["signal", "result"], registry=registry
        )
        self.records = prometheus_client.Counter(
            "stepstream_otlp_records", "Records that OTLP requests became.", ["topic"], registry=registry
        )
        self.rejected = prometheus_client.Counter(
            "stepstream_otlp_rejected", "Spans and log records that were not taken.", ["signal"], registry=registry
        )


class OtlpReceiver:
    """An ASGI handler of both paths. `start` it in the loop that serves, `close` it after."""

    def __init__(
        self,
        settings: Settings,
        publisher: Deliverer,
        registry: CollectorRegistry,
        producer: str,
        tenant_of: TenantOf = lambda scope: None,
    ) -> None:
        """`producer` is the program that writes the events, as `gateway/0.1.0`."""
        self._settings = settings
        self._publisher = publisher
        self._counts = Counts(registry)
        self._tenant_of = tenant_of
        producer = f"otlp-{producer}"
        places = SpanIndex(settings.otlp.trajectories)
        self._assembler = Assembler(producer, places)
        self._lock = threading.Lock()  # the assembler remembers; open traces are told in another thread
        self._codec = codec_of(settings)
        self._open = OpenTraces(settings, self._codec, self._records, settings.gateway.agent)
        self._intake = Intake(self._assembler, PlainSteps(producer, places), producer, self._open.is_open)
        self._most = settings.otlp.max_body_mb * 1_048_576

    def start(self) -> None:
        """Begins to tell open traces."""
        loop = asyncio.get_running_loop()
        patience = self._settings.otlp.acknowledge_s

        def publish(records: list[AssembledRecord]) -> list[str]:
            refused = asyncio.run_coroutine_threadsafe(self._deliver(records, patience), loop).result()
            self._counts.rejected.labels("traces").inc(len(refused))
            return refused

        self._open.start(publish)

    async def close(self) -> None:
        """Stops; open traces stay on the log for whoever reads them next."""
        await asyncio.to_thread(self._open.close)
        self._codec.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        signal: Signal = "logs" if scope["path"].endswith("/logs") else "traces"
        kind = wire.PROTOBUF
        try:
            headers = wire.headers_of(scope["headers"])
            kind = headers.content_type
            defaults = self._defaults(scope)
            body = wire.inflate(await read_body(receive), headers.encoding, self._most)
            with self._lock:
                if signal == "traces":
                    taken = self._intake.traces(wire.traces(body, kind), defaults, now_us())
                else:
                    taken = self._intake.logs(wire.logs(body, kind), defaults, now_us())
            for record in taken.records:
                if record.topic == TOPIC:
                    self._open.expect(record.key)
            try:
                for why in await self._deliver(taken.records, self._settings.otlp.acknowledge_s):
                    taken.reject(why)
            except NotDelivered as error:
                raise NotAcknowledged(f"send it again: {error}") from error
        except Disconnected:
            return
        except GatewayError as error:
            self._counts.requests.labels(signal, str(error.status)).inc()
            retry = [RETRY_AFTER] if error.status == 503 else []
            answer = wire.refusal(error, kind)
            await respond(send, error.status, answer, [(b"content-type", kind.encode()), *retry])
            return
        self._count(signal, taken)
        reply = wire.answer(signal, kind, taken.rejected, taken.why)
        await respond(send, 200, reply, [(b"content-type", kind.encode())])

    def _defaults(self, scope: Scope) -> Defaults:
        gateway = self._settings.gateway
        return Defaults(self._tenant_of(scope) or gateway.tenant, gateway.consent, gateway.agent)

    def _records(self, trace: Trace, defaults: Defaults) -> list[AssembledRecord]:
        with self._lock:
            return self._assembler.records(trace, defaults)

    async def _deliver(self, records: Sequence[AssembledRecord | EncodedEvent], timeout_s: float) -> list[str]:
        """Why Kafka will never take some of the records (as one that is too large); it has all the others.

        Raises:
            NotDelivered: it may not have them yet, and may take them later.
        """
        refused: list[str] = []
        try:
            await self._publisher.deliver(records, timeout_s)
        except NotDelivered as error:
            if error.retry:
                raise
            for record in records:  # each on its own: the others are sound, and sent twice they are the same event
                try:
                    await self._publisher.deliver([record], timeout_s)
                except NotDelivered as fault:
                    if fault.retry:
                        raise
                    refused.append(str(fault))
        for topic, count in Counter(record.topic for record in records).items():
            self._counts.records.labels(topic).inc(count)
        return refused

    def _count(self, signal: Signal, taken: Taken) -> None:
        self._counts.requests.labels(signal, "200").inc()
        if taken.rejected:
            self._counts.rejected.labels(signal).inc(taken.rejected)
            log.warning("%d %s not taken: %s", taken.rejected, signal, taken.why)
