"""What becomes of one request: records to publish now, parts of traces to keep, and what is refused.

An export cut into its traces: each is kept under its own key until it is whole.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from stepstream.delivery.types import EncodedEvent
from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.otlp.assembly import AssembledRecord, Assembler
from stepstream.services.gateway.otlp.attributes import decoded, value
from stepstream.services.gateway.otlp.calls import EVALUATION
from stepstream.services.gateway.otlp.fast_path import Gathered
from stepstream.services.gateway.otlp.fast_steps import PlainSteps
from stepstream.services.gateway.otlp.identity import CONSENTS, Defaults, consent_of
from stepstream.services.gateway.otlp.spans import CALL, Resource, logs_of, span_of
from stepstream.services.gateway.otlp.trace import Trace
from stepstream.services.gateway.otlp.wire import Signal
from stepstream.topics.events import new_trace_export
from stepstream.topics.ids import new_event_id


def split_traces(request: Any, wanted: Collection[str]) -> dict[str, bytes]:
    """For each trace of a `TraceRequest` that is wanted, by its id, a request with its spans alone."""
    return _split(request, wanted, "resource_spans", "scope_spans", "spans")


def split_logs(request: ExportLogsServiceRequest, wanted: Collection[str]) -> dict[str, bytes]:
    """As `split_traces`, of log records; only those of GenAI, which is what `wanted` traces have."""
    return _split(request, wanted, "resource_logs", "scope_logs", "log_records")


def _split(request: Any, wanted: Collection[str], resources: str, scopes: str, records: str) -> dict[str, bytes]:
    """The requests by trace; the names are those of the request's three levels."""
    found: dict[str, Any] = {}
    for group in getattr(request, resources):
        for scope in getattr(group, scopes):
            # Where records of this resource and scope go, by trace.
            places: dict[str, Any] = {}
            for record in getattr(scope, records):
                trace_id = record.trace_id.hex()
                if trace_id not in wanted:
                    continue
                if trace_id not in places:
                    part = getattr(found.setdefault(trace_id, type(request)()), resources).add()
                    part.resource.CopyFrom(group.resource)
                    places[trace_id] = getattr(part, scopes).add()
                    places[trace_id].scope.CopyFrom(scope.scope)
                getattr(places[trace_id], records).append(record)
    return {trace_id: part.SerializeToString() for trace_id, part in found.items()}


TOPIC = "open-traces"
_CONSENT = "stepstream.consent"
_ASTRAY = (
    "an evaluation does not tell what it is about: record it while the span of its call is active, or give "
    "stepstream.trajectory_id, gen_ai.conversation.id or the gen_ai.response.id of a call that this gateway was told of"
)


@dataclass(slots=True)
class Taken:
    """What a request comes to."""

    records: list[AssembledRecord | EncodedEvent] = field(default_factory=list)
    rejected: int = 0
    why: str = ""

    def reject(self, why: str) -> None:
        """Counts one span or log record that is not taken, and why: the first reason is told."""
        self.rejected += 1
        self.why = self.why or why


class Intake:
    """Decides, trace by trace, whether all of it is here."""

    def __init__(self, assembler: Assembler, plain: PlainSteps, producer: str, is_open: Callable[[str], bool]) -> None:
        """`is_open` tells whether parts of a trace are kept already."""
        self._assembler = assembler
        self._plain = plain
        self._producer = producer
        self._is_open = is_open

    def traces(self, request: Any, defaults: Defaults, now_us: int) -> Taken:
        """The records of a `TraceRequest`: steps of the traces that are whole, parts of the others.

        Raises:
            BadRequest: an attribute is malformed; then nothing has changed.
        """
        taken = Taken()
        traces: dict[str, Gathered] = {}
        others: dict[str, Trace] = {}
        try:
            for group in request.resource_spans:
                _gather(group, traces, taken)
            # Before any trace is told, all that may be malformed is read.
            for trace_id, gathered in traces.items():
                if not gathered.settle():
                    others[trace_id] = _trace_of(gathered)
        except (DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(f"the body is no OTLP request: {error}") from None
        kept: list[str] = []
        for trace_id, gathered in traces.items():
            trace = others.get(trace_id)
            if self._is_open(trace_id):
                kept.append(trace_id)
                continue
            if trace is None:
                plain = self._plain.records(gathered, defaults)
                if plain is not None:
                    taken.records += plain
                    continue
                trace = _trace_of(gathered)
            if trace.whole() and _has_call(trace):
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
                records = self._assembler.records(loose, defaults)
                taken.records += records
                if not records:
                    taken.reject(_ASTRAY)
            else:
                taken.reject(f"{log.name} has no trace and span: record it while the span of its call is active")
        if kept:
            taken.records += self._parts("logs", split_logs(request, kept), defaults, now_us)
        return taken

    def _parts(
        self, signal: Signal, parts: dict[str, bytes], defaults: Defaults, now_us: int
    ) -> Iterable[AssembledRecord]:
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
            yield AssembledRecord(TOPIC, trace_id, record)


def _gather(group: Any, traces: dict[str, Gathered], taken: Taken) -> None:
    """The spans of a `ResourceSpans` by trace."""
    attributes = decoded(group.resource.attributes)
    usual = _consent_fault(attributes.get(_CONSENT))
    for scope in group.scope_spans:
        resource = Resource(attributes, scope.scope.name)
        for raw in scope.spans:
            named = raw.attributes
            held = {name: named[name] for name in named}  # `dict` asks for the names in Python, one by one
            trace_id = raw.trace_id.hex()
            fault = usual
            if _CONSENT in held and (own := value(held[_CONSENT])) not in (None, ""):
                fault = _consent_fault(own)
            if len(trace_id) != 32 or len(raw.span_id) != 8:
                fault = "a span's trace_id must have 16 bytes and its span_id 8"
            if fault:
                taken.reject(fault)
                continue
            trace = traces.get(trace_id)
            if trace is None:
                trace = traces[trace_id] = Gathered(trace_id)
            trace.add(raw, held, resource)


def _consent_fault(consent: Any) -> str:
    """Why spans with this consent cannot be taken; empty if they can."""
    if consent in (None, "") or consent_of(consent) == consent:
        return ""
    return f"{_CONSENT} must be one of {', '.join(sorted(CONSENTS))}, not '{consent}'"


def _trace_of(gathered: Gathered) -> Trace:
    trace = Trace(gathered.trace_id)
    for raw, held, resource in gathered.spans:
        span = span_of(raw, decoded(held), resource)
        trace.spans[span.span_id] = span
    return trace


def _has_call(trace: Trace) -> bool:
    return any(span.role is CALL for span in trace.spans.values())
