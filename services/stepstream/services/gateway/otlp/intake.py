"""What becomes of one request: records to publish now, parts of traces to keep, and what is refused."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from stepstream.services.gateway.otlp.assembly import CONSENTS, Assembler, Record
from stepstream.services.gateway.otlp.calls import EVALUATION
from stepstream.services.gateway.otlp.identity import Defaults
from stepstream.services.gateway.otlp.spans import CALL, Span, logs_of, spans_of
from stepstream.services.gateway.otlp.split import split_logs, split_traces
from stepstream.services.gateway.otlp.trace import Trace
from stepstream.services.gateway.otlp.wire import Signal
from stepstream.topics.events import new_trace_export
from stepstream.topics.ids import new_event_id

TOPIC = "open-traces"


@dataclass(slots=True)
class Taken:
    """What a request comes to."""

    records: list[Record] = field(default_factory=list)
    rejected: int = 0
    why: str = ""

    def reject(self, why: str) -> None:
        """Counts one span or log record that is not taken, and why: the first reason is told."""
        self.rejected += 1
        self.why = self.why or why


class Intake:
    """Decides, trace by trace, whether all of it is here."""

    def __init__(self, assembler: Assembler, producer: str, is_open: Callable[[str], bool]) -> None:
        """`is_open` tells whether parts of a trace are kept already."""
        self._assembler = assembler
        self._producer = producer
        self._is_open = is_open

    def traces(self, request: ExportTraceServiceRequest, defaults: Defaults, now_us: int) -> Taken:
        """The records of an export of spans: steps of the traces that are whole, parts of the others."""
        taken = Taken()
        traces: dict[str, Trace] = {}
        for span in spans_of(request):
            fault = _fault(span)
            if fault:
                taken.reject(fault)
                continue
            trace = traces.get(span.trace_id)
            if trace is None:
                trace = traces[span.trace_id] = Trace(span.trace_id)
            trace.spans[span.span_id] = span
        kept: list[str] = []
        for trace_id, trace in traces.items():
            if trace.whole() and not self._is_open(trace_id) and _has_call(trace):
                taken.records += self._assembler.records(trace, defaults)
            else:
                kept.append(trace_id)
        if kept:
            taken.records += self._parts("traces", split_traces(request, set(kept)), defaults, now_us)
        return taken

    def logs(self, request: ExportLogsServiceRequest, defaults: Defaults, now_us: int) -> Taken:
        """The records of an export of log records: those that belong to a span wait for its trace."""
        taken = Taken()
        kept: set[str] = set()
        for log in logs_of(request):
            if log.trace_id and log.span_id:
                kept.add(log.trace_id)
            elif log.name == EVALUATION:
                loose = Trace(log.trace_id)
                loose.add_log(log)
                taken.records += self._assembler.records(loose, defaults)
            else:
                taken.reject(f"{log.name} has no trace and span: record it while the span of its call is active")
        if kept:
            taken.records += self._parts("logs", split_logs(request, kept), defaults, now_us)
        return taken

    def _parts(self, signal: Signal, parts: dict[str, bytes], defaults: Defaults, now_us: int) -> Iterable[Record]:
        for trace_id, payload in parts.items():
            record = new_trace_export(
                event_id=new_event_id(),
                occurred_at_us=now_us,
                producer=self._producer,
                trace_id=trace_id,
                tenant=defaults.tenant,
                consent=defaults.consent,
                signal=signal,
                payload=payload,
            )
            yield Record(TOPIC, trace_id, record)


def _fault(span: Span) -> str:
    """Why a span cannot be taken; empty if it can."""
    if not span.trace_id or not span.span_id:
        return "a span's trace_id must have 16 bytes and its span_id 8"
    consent = span.attributes.get("stepstream.consent") or span.resource.attributes.get("stepstream.consent")
    if consent is not None and consent not in CONSENTS:
        return f"stepstream.consent must be one of {', '.join(sorted(CONSENTS))}, not '{consent}'"
    return ""


def _has_call(trace: Trace) -> bool:
    return any(span.role is CALL for span in trace.spans.values())
