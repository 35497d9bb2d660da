"""Export spans of Stepstream's own processes by OTLP. OpenTelemetry is imported only if `tracing.endpoint` is set.

A span's context travels in the header `traceparent` of Kafka records (W3C Trace Context), from process to process.
Spans have names, times and identities, and no content.
"""

from collections.abc import Mapping
from typing import Any, Literal

from stepstream.config import Settings
from stepstream.core.process import Fatal

Kind = Literal["server", "consumer", "producer"]
HEADER = "traceparent"
_SAMPLED = 1


class Span:
    """One span that has begun. `end` exports it; without it, the span never happened."""

    __slots__ = ("_span", "traceparent")

    def __init__(self, span: Any) -> None:
        self._span = span
        context = span.get_span_context()
        self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        """Context of the span, for its children."""

    def end(self, *, error: str = "") -> None:
        """End the span now; `error`: the class of a failure, empty: none."""
        if error:
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR, error)
        self._span.end()


class Tracing:
    """The spans of one process. Thread-safe; a background thread exports them, and drops them if the collector is away.

    Close it: this exports what is left.
    """

    def __init__(self, provider: Any) -> None:
        """`provider` is OpenTelemetry's tracer provider."""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("stepstream")
        self._propagator = TraceContextTextMapPropagator()

    def start(
        self, name: str, kind: Kind, parent: str, attributes: Mapping[str, str | int], start_us: int | None = None
    ) -> Span:
        """Begin a span.

        Args:
            name: operation and its object, as `process steps`.
            kind: role in the exchange.
            parent: `traceparent` of the parent; empty or malformed: the span begins a trace.
            attributes: facts without content.
            start_us: time of its begin in microseconds since the epoch; None: now.
        """
        from opentelemetry.trace import SpanKind

        return Span(
            self._tracer.start_span(
                name,
                context=self._propagator.extract({HEADER: parent}),
                kind=SpanKind[kind.upper()],
                attributes=attributes,
                start_time=None if start_us is None else start_us * 1000,
            )
        )

    def close(self) -> None:
        """Export what is left; block until the collector took it, or the exporter's timeout passed."""
        self._provider.shutdown()


def open_tracing(settings: Settings, process: str) -> Tracing | None:
    """Return the tracing of a process; None: it is off.

    Raises:
        Fatal: OpenTelemetry is not installed.
    """
    if not settings.tracing.endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
    except ImportError as error:
        raise Fatal(
            f"tracing.endpoint is set and {error.name} is not installed: pip install 'stepstream[tracing]'"
        ) from None
    provider = TracerProvider(
        resource=Resource.create({"service.name": f"stepstream-{process}"}),
        sampler=ParentBasedTraceIdRatio(settings.tracing.share),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(endpoint=f"{settings.tracing.endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider)


def is_sampled(traceparent: str) -> bool:
    """Return True if a context says that its trace is recorded."""
    flags = traceparent.rpartition("-")[2]
    try:
        return len(flags) == 2 and bool(int(flags, 16) & _SAMPLED)
    except ValueError:
        return False
