"""Split one OTLP request into records to publish now, parts of open traces, and rejected items.
An incomplete trace goes to the topic of open traces, under its own key, until it is complete.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from stepstream.core.slices import Work
from stepstream.delivery.types import EncodedEvent
from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.otlp.assembly import AssembledRecord, Assembler
from stepstream.services.gateway.otlp.attributes import decode_attributes, decode_value
from stepstream.services.gateway.otlp.calls import EVALUATION
from stepstream.services.gateway.otlp.fast_path import TraceSpans
from stepstream.services.gateway.otlp.fast_steps import PlainStepWriter
from stepstream.services.gateway.otlp.identity import CONSENTS, Defaults, consent_of
from stepstream.services.gateway.otlp.span_layout import known_call
from stepstream.services.gateway.otlp.spans import CALL, Resource, logs_of, span_of
from stepstream.services.gateway.otlp.trace import Trace
from stepstream.services.gateway.otlp.wire import Signal, split_entries
from stepstream.topics.catalogue import OPEN_TRACES
from stepstream.topics.events import new_trace_export
from stepstream.topics.ids import new_event_id

log = logging.getLogger(__name__)

_CONSENT = "stepstream.consent"
_NO_SUBJECT = (
    "the evaluation has no subject: record it while the span of its call is active, or set stepstream.trajectory_id, "
    "gen_ai.conversation.id, or the gen_ai.response.id of a call that this gateway received"
)


@dataclass(slots=True)
class IntakeResult:
    """Result of one request."""

    records: list[AssembledRecord | EncodedEvent] = field(default_factory=list)
    open_traces: Collection[str] = ()
    """Ids of the traces of which `records` has parts, which wait for the rest."""
    rejected: int = 0
    reason: str = ""

    def reject(self, reason: str) -> None:
        """Count one rejected span or log record; the answer states the first reason."""
        self.rejected += 1
        self.reason = self.reason or reason


class Intake:
    """Decides for each trace of a request whether it is complete."""

    def __init__(
        self, assembler: Assembler, plain: PlainStepWriter, producer: str, is_open: Callable[[str, str], bool]
    ) -> None:
        """Set the paths for plain traces and for others; `is_open`: True if earlier parts of a tenant's trace wait."""
        self._assembler = assembler
        self._plain = plain
        self._producer = producer
        self._is_open = is_open

    def traces(self, request: Any, defaults: Defaults, now_us: int) -> Work[IntakeResult]:
        """Return the records of a `TraceRequest`: steps of complete traces, parts of the others.

        Raises:
            BadRequest: an attribute is malformed; no state has changed.
        """
        result = IntakeResult()
        traces: dict[str, TraceSpans] = {}
        others: dict[str, Trace] = {}
        try:
            for group in request.resource_spans:
                yield from _gather(group, traces, result)
            # Decode everything that may be malformed before the first trace changes the index.
            for trace_id, gathered in traces.items():
                yield
                if not gathered.finish():
                    others[trace_id] = _trace_of(gathered)
        except (DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(f"the body is no OTLP request: {error}") from None
        open_ids: list[str] = []
        for trace_id, gathered in traces.items():
            yield
            trace = others.get(trace_id)
            if self._is_open(defaults.tenant, trace_id):
                open_ids.append(trace_id)
                continue
            if trace is None:
                plain = self._plain.records(gathered, defaults)
                if plain is not None:
                    result.records += plain
                    continue
                trace = _trace_of(gathered)
            records = self._records(trace, defaults) if trace.is_complete() and _has_call(trace) else None
            if records is None:
                open_ids.append(trace_id)
            else:
                result.records += records
        if open_ids:
            parts = yield from split_traces(request, set(open_ids))
            result.open_traces = parts.keys()
            result.records += self._parts("traces", parts, defaults, now_us)
        return result

    def logs(self, request: ExportLogsServiceRequest, defaults: Defaults, now_us: int) -> Work[IntakeResult]:
        """Return the records of an export of log records; those with a span wait for its trace."""
        result = IntakeResult()
        open_ids: set[str] = set()
        for record in logs_of(request):
            yield
            if record.trace_id and record.span_id:
                open_ids.add(record.trace_id)
            elif record.name == EVALUATION:
                single = Trace(record.trace_id)
                single.add_log(record)
                records = self._assembler.records(single, defaults)
                result.records += records
                if not records:
                    result.reject(_NO_SUBJECT)
            else:
                result.reject(f"{record.name} has no trace and span: record it while the span of its call is active")
        if open_ids:
            parts = yield from split_logs(request, open_ids)
            result.open_traces = parts.keys()
            result.records += self._parts("logs", parts, defaults, now_us)
        return result

    def _records(self, trace: Trace, defaults: Defaults) -> list[AssembledRecord] | None:
        """Return the records of a complete trace; None: it cannot be assembled, and becomes a dead letter if sent on.

        The other traces of its request are no worse for it.
        """
        try:
            return self._assembler.records(trace, defaults)
        except Exception:
            log.exception("cannot assemble trace %s", trace.trace_id)
            return None

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
                consent_ceiling=defaults.consent_ceiling,
                signal=signal,
                payload=payload,
            )
            yield AssembledRecord(OPEN_TRACES, trace_id, record)


def _gather(group: Any, traces: dict[str, TraceSpans], result: IntakeResult) -> Work[None]:
    """Add the spans of a `ResourceSpans` to their traces; reject invalid ones."""
    attributes = decode_attributes(group.resource.attributes)
    resource_fault = _consent_fault(attributes.get(_CONSENT))
    for scope in group.scope_spans:
        resource = Resource(attributes, scope.scope.name)
        for raw in scope.spans:
            yield
            call, values = known_call(raw.attributes[:]), None
            trace_id = raw.trace_id.hex()
            fault = resource_fault
            if call is None:
                values = split_entries(raw.attributes)
                if _CONSENT in values and (own := decode_value(values[_CONSENT])) not in (None, ""):
                    fault = _consent_fault(own)
            if len(trace_id) != 32 or len(raw.span_id) != 8:
                fault = "a span's trace_id must have 16 bytes and its span_id 8"
            if fault:
                result.reject(fault)
                continue
            trace = traces.get(trace_id)
            if trace is None:
                trace = traces[trace_id] = TraceSpans(trace_id)
            trace.add(raw, call, values, resource)


def _consent_fault(consent: Any) -> str:
    """Return why spans with this consent are rejected; empty: valid."""
    if consent in (None, "") or consent_of(consent) == consent:
        return ""
    return f"{_CONSENT} must be one of {', '.join(sorted(CONSENTS))}, not '{consent}'"


def _trace_of(gathered: TraceSpans) -> Trace:
    trace = Trace(gathered.trace_id)
    for raw, values, resource in gathered.spans:
        span = span_of(raw, decode_attributes(values or split_entries(raw.attributes)), resource)
        trace.spans[span.span_id] = span
    return trace


def _has_call(trace: Trace) -> bool:
    return any(span.role is CALL for span in trace.spans.values())


def split_traces(request: Any, wanted: Collection[str]) -> Work[dict[str, bytes]]:
    """Split a `TraceRequest` into one encoded request for each trace id in `wanted`."""
    return _split(request, wanted, "resource_spans", "scope_spans", "spans")


def split_logs(request: ExportLogsServiceRequest, wanted: Collection[str]) -> Work[dict[str, bytes]]:
    """Split an export of log records into one encoded request for each trace id in `wanted`."""
    return _split(request, wanted, "resource_logs", "scope_logs", "log_records")


def _split(request: Any, wanted: Collection[str], resources: str, scopes: str, records: str) -> Work[dict[str, bytes]]:
    """Split a request by trace; the last three arguments name the fields of its levels."""
    requests: dict[str, Any] = {}
    for group in getattr(request, resources):
        for scope in getattr(group, scopes):
            # Scope messages that take this scope's records, by trace.
            targets: dict[str, Any] = {}
            for record in getattr(scope, records):
                yield
                trace_id = record.trace_id.hex()
                if trace_id not in wanted:
                    continue
                if trace_id not in targets:
                    part = getattr(requests.setdefault(trace_id, type(request)()), resources).add()
                    part.resource.CopyFrom(group.resource)
                    targets[trace_id] = getattr(part, scopes).add()
                    targets[trace_id].scope.CopyFrom(scope.scope)
                getattr(targets[trace_id], records).append(record)
    encoded = {}
    for trace_id, part in requests.items():
        encoded[trace_id] = part.SerializeToString()
        yield
    return encoded
