"""Collect the spans that processes export by OTLP over HTTP."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class CollectedSpan:
    """One exported span."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty: it begins the trace."""
    text: str
    """Everything that the span says."""


@dataclass
class TraceCollector:
    """A collector's address and what it got."""

    url: str = ""
    spans: list[CollectedSpan] = field(default_factory=list)

    def trace(self, trace_id: str) -> dict[str, CollectedSpan]:
        """Return the spans of a trace by id."""
        return {span.span_id: span for span in self.spans if span.trace_id == trace_id}

    def add(self, body: bytes) -> None:
        """Add the spans of one request."""
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            attributes = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [
                    CollectedSpan(
                        attributes["service.name"],
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        str(span),
                    )
                    for span in scope.spans
                ]


@contextmanager
def collect_traces() -> Iterator[TraceCollector]:
    """Serve `/v1/traces` in threads."""
    collector = TraceCollector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            collector.add(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
