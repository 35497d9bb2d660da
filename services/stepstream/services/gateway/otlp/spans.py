"""Read spans and GenAI log records, and decide each span's role in an agent's work."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from stepstream.services.gateway.otlp import logfire
from stepstream.services.gateway.otlp.attributes import Attributes, attributes_of, decode_attributes, value_of
from stepstream.services.gateway.otlp.wire import split_entries


class Role(Enum):
    """Role of a span in an agent's work."""

    CALL = "call"
    """One call of a model: a step."""
    TOOL = "tool"
    AGENT = "agent"
    """An agent's run: its steps are a child trajectory of its caller's."""
    OTHER = "other"


CALL, TOOL, AGENT, OTHER = Role.CALL, Role.TOOL, Role.AGENT, Role.OTHER
"""Module names, because every span compares them and a lookup in the enumeration costs several times as much."""

OPERATIONS = {
    "chat": CALL,
    "text_completion": CALL,
    "generate_content": CALL,
    "execute_tool": TOOL,
    "invoke_agent": AGENT,
}
_INFERENCE_KINDS = {"LLM": CALL, "TOOL": TOOL, "AGENT": AGENT}
_REQUEST_TYPES = {"chat": CALL, "completion": CALL}
_TRACELOOP_KINDS = {"tool": TOOL, "agent": AGENT}
_NAMED = (
    ("openinference.span.kind", _INFERENCE_KINDS),
    ("llm.request.type", _REQUEST_TYPES),
    ("traceloop.span.kind", _TRACELOOP_KINDS),
    ("mcp.method.name", {"tools/call": TOOL}),
    ("rpc.system", {"a2a": AGENT}),
)


@dataclass(slots=True)
class Resource:
    """Origin of spans: the resource's attributes and the scope's name."""

    attributes: Attributes
    scope: str = ""


@dataclass(slots=True)
class Event:
    """A span event."""

    name: str
    time_ns: int
    attributes: Attributes


@dataclass(slots=True)
class Span:
    """A span that has ended. Ids are lower-case hexadecimal; an empty `parent_id` means a root."""

    trace_id: str
    span_id: str
    parent_id: str
    role: Role
    start_ns: int
    end_ns: int
    attributes: Attributes
    resource: Resource
    failed: bool = False
    events: list[Event] = field(default_factory=list)
    name: str = ""

    @property
    def error(self) -> str | None:
        """Class of the error; None: it did not fail."""
        kind = self.attributes.get("error.type")
        if not self.failed and kind is None:
            return None
        if kind is None:
            raised = (e.attributes.get("exception.type") for e in self.events if e.name == "exception")
            kind = next((name for name in raised if name), None)
        return str(kind or "error")

    @property
    def duration_ms(self) -> float | None:
        """Duration in milliseconds; None: unknown."""
        return (self.end_ns - self.start_ns) / 1e6 if self.end_ns >= self.start_ns > 0 else None


@dataclass(slots=True)
class Log:
    """A log record that is a GenAI event."""

    trace_id: str
    span_id: str
    name: str
    time_ns: int
    attributes: Attributes
    body: Any
    resource: Resource


def role_of(attributes: Attributes, name: str, *, failed: bool = False) -> Role:
    """Return the role of a span in any convention."""
    if logfire.is_repeated(attributes, failed):
        return OTHER
    operation = attributes.get("gen_ai.operation.name")
    if operation is not None:
        return OPERATIONS.get(operation, OTHER) if type(operation) is str else OTHER
    for key, roles in _NAMED:
        word = attributes.get(key)
        if word is not None:
            return roles.get(word, OTHER) if type(word) is str else OTHER
    if logfire.is_call(attributes):
        return CALL
    if name.startswith("a2a.") or any(key.startswith("a2a.") for key in attributes):
        return AGENT
    return OTHER


def spans_of(request: Any) -> Iterator[Span]:
    """Yield the spans of a `TraceRequest`; malformed ids become empty.

    Raises:
        DecodeError, UnicodeDecodeError: an attribute is malformed.
    """
    for group in request.resource_spans:
        shared = decode_attributes(group.resource.attributes)
        for scope in group.scope_spans:
            resource = Resource(shared, scope.scope.name)
            for raw in scope.spans:
                yield span_of(raw, decode_attributes(split_entries(raw.attributes)), resource)


def has_failed(status: bytes) -> bool:
    """Return True if a span's encoded `Status` is an error. Raises DecodeError."""
    return bool(status) and bool(Status.FromString(status).code == Status.STATUS_CODE_ERROR)


def span_of(raw: Any, attributes: Attributes, resource: Resource) -> Span:
    """Return a span of a `TraceRequest`. Raises as `spans_of` does."""
    name, failed = raw.name, has_failed(raw.status)
    role = role_of(attributes, name, failed=failed)
    start = raw.start_time_unix_nano - (logfire.duration_ns(attributes) if role is CALL else 0)
    return Span(
        _id(raw.trace_id, 16),
        _id(raw.span_id, 8),
        raw.parent_span_id.hex(),
        role,
        max(start, 0),
        raw.end_time_unix_nano,
        attributes,
        resource,
        failed,
        [Event(e.name, e.time_unix_nano, decode_attributes(e.attributes)) for e in raw.events],
        name,
    )


def logs_of(request: ExportLogsServiceRequest) -> Iterator[Log]:
    """Yield the GenAI events among an export's log records; malformed ids become empty."""
    for group in request.resource_logs:
        shared = attributes_of(group.resource.attributes)
        for scope in group.scope_logs:
            resource = Resource(shared, scope.scope.name)
            for raw in scope.log_records:
                attributes = attributes_of(raw.attributes)
                name = raw.event_name or attributes.get("event.name", "")
                if isinstance(name, str) and name.startswith("gen_ai."):
                    yield Log(
                        _id(raw.trace_id, 16),
                        _id(raw.span_id, 8),
                        name,
                        raw.time_unix_nano or raw.observed_time_unix_nano,
                        attributes,
                        value_of(raw.body, raw.body.WhichOneof("value")),
                        resource,
                    )


def _id(raw: bytes, size: int) -> str:
    return raw.hex() if len(raw) == size else ""
