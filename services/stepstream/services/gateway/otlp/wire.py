"""Decode OTLP requests over HTTP and encode their answers: protobuf or JSON, plain or compressed.

`TraceRequest` declares other types for the same bytes. OTLP's attributes are a list of names and values, each value a
message. On the wire a list of pairs equals a map, and a message equals bytes. With these types a resource's attributes
are one dictionary of bytes, and a span's are a list of bytes, its entries. `attributes` and `span_layout` decode only
the values that are needed. Undeclared fields are preserved.
"""

import base64
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import orjson
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from stepstream.core.slices import Work
from stepstream.services.gateway.errors import BadRequest, GatewayError, TooLarge

_PACKAGE = "stepstream.otlp"
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
    "fixed64": _FIELD.TYPE_FIXED64,
}
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "TraceRequest": {"resource_spans": (1, "*ResourceSpans")},
    "ResourceSpans": {"resource": (1, "Resource"), "scope_spans": (2, "*ScopeSpans")},
    "Resource": {"attributes": (1, "attributes")},
    "ScopeSpans": {"scope": (1, "Scope"), "spans": (2, "*Span")},
    "Scope": {"name": (1, "string")},
    "Span": {
        "trace_id": (1, "bytes"),
        "span_id": (2, "bytes"),
        "parent_span_id": (4, "bytes"),
        "name": (5, "string"),
        "start_time_unix_nano": (7, "fixed64"),
        "end_time_unix_nano": (8, "fixed64"),
        "attributes": (9, "*bytes"),
        "events": (11, "*Event"),
        "status": (15, "bytes"),
    },
    "Event": {"time_unix_nano": (1, "fixed64"), "name": (2, "string"), "attributes": (3, "attributes")},
    "Entry": {"key": (1, "string"), "value": (2, "bytes")},
}
"""Fields by message, with number and type; `*`: several."""


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            field = message.field.add(name=field_name, number=number)
            repeated = kind == "attributes" or kind.startswith("*")
            field.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
            if kind.removeprefix("*") in _SCALARS:
                field.type = _SCALARS[kind.removeprefix("*")]
                continue
            field.type = _FIELD.TYPE_MESSAGE
            if kind == "attributes":
                field.type_name = f".{_PACKAGE}.{name}.AttributesEntry"
                entry = message.nested_type.add(name="AttributesEntry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
                entry.field.add(name="value", number=2, type=_FIELD.TYPE_BYTES, label=_FIELD.LABEL_OPTIONAL)
            else:
                field.type_name = f".{_PACKAGE}.{kind.removeprefix('*')}"
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


TraceRequest: Any = _class("TraceRequest")
"""The class of `/v1/traces` requests; `attributes.decode_attributes` reads its maps."""
_Entry: Any = _class("Entry")


def split_entries(entries: Iterable[bytes]) -> dict[str, bytes]:
    """Return a span's encoded attributes by name; the last of duplicates wins.

    Raises:
        DecodeError: an entry is malformed.
    """
    values: dict[str, bytes] = {}
    for entry in entries:
        parsed = _Entry.FromString(entry)
        values[parsed.key] = parsed.value
    return values


PROTOBUF = "application/x-protobuf"
JSON = "application/json"
Signal = Literal["traces", "logs"]
_IDS = ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")
_NO_ID = b"?"
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
# google.rpc.Code by HTTP status.
_CODES = {400: 3, 401: 16, 403: 7, 413: 8, 415: 3, 503: 14}


class Unsupported(GatewayError):
    """The content type or encoding is not OTLP's; the message names those that are."""

    status = 415
    type = "invalid_request_error"


class Headers(NamedTuple):
    """The headers that decide how to read a request's body."""

    content_type: str
    encoding: str

    @property
    def is_compressed(self) -> bool:
        """True if the body must go through `inflate`, which refuses unknown encodings."""
        return self.encoding not in ("identity", "")


def headers_of(raw: list[tuple[bytes, bytes]]) -> Headers:
    """Return a body's content type and encoding.

    Raises:
        Unsupported: OTLP has no such content type, or none is given: a page of any site may post such a body.
    """
    kind, encoding = "", "identity"
    for name, value in raw:
        if name == b"content-type":
            kind = value.decode("latin-1").split(";")[0].strip().lower()
        elif name == b"content-encoding":
            encoding = value.decode("latin-1").strip().lower()
    if kind not in (PROTOBUF, JSON):
        raise Unsupported(f"content-type must be {PROTOBUF} or {JSON}, not '{kind}'")
    return Headers(kind, encoding)


def inflate(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Return the decompressed body.

    Raises:
        Unsupported: OTLP has no such encoding of compressed bodies.
        BadRequest: the body is not compressed as declared.
        TooLarge: it exceeds `max_bytes` bytes.
    """
    if encoding not in ("gzip", "deflate"):
        raise Unsupported(f"content-encoding must be gzip, deflate or identity, not '{encoding}'")
    engine = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        plain = engine.decompress(body, max_bytes)
    except zlib.error as error:
        raise BadRequest(f"the body is not {encoding}: {error}") from None
    if engine.unconsumed_tail:
        raise TooLarge(f"the body is larger than {max_bytes} bytes once decompressed")
    if not engine.eof:
        raise BadRequest(f"the body's {encoding} data is cut off")
    return plain


def traces(body: bytes, kind: str) -> Work[Any]:
    """Parse a request of `/v1/traces` into a `TraceRequest`, with attributes still encoded.

    Raises:
        BadRequest: it is malformed.
    """
    if kind == JSON:
        request = ExportTraceServiceRequest()
        yield from _parse_json(body, request, "resourceSpans", "scopeSpans", "spans")
        body = request.SerializeToString()
        yield
    try:
        return TraceRequest.FromString(body)
    except DecodeError as error:
        raise BadRequest(f"the body is no OTLP request: {error}") from None


def logs(body: bytes, kind: str) -> Work[ExportLogsServiceRequest]:
    """Parse a request of `/v1/logs`.

    Raises:
        BadRequest: it is malformed.
    """
    request = ExportLogsServiceRequest()
    if kind == JSON:
        yield from _parse_json(body, request, "resourceLogs", "scopeLogs", "logRecords")
        return request
    try:
        request.ParseFromString(body)
    except DecodeError as error:
        raise BadRequest(f"the body is no OTLP request: {error}") from None
    return request


def success_body(signal: Signal, kind: str, rejected: int, reason: str) -> bytes:
    """Return the body of a success, a partial one if `rejected`."""
    if not rejected and not reason:
        return b"{}" if kind == JSON else b""
    response: ExportTraceServiceResponse | ExportLogsServiceResponse
    if signal == "traces":
        spans = ExportTraceServiceResponse()
        spans.partial_success.rejected_spans = rejected
        spans.partial_success.error_message = reason
        response = spans
    else:
        records = ExportLogsServiceResponse()
        records.partial_success.rejected_log_records = rejected
        records.partial_success.error_message = reason
        response = records
    return orjson.dumps(MessageToDict(response)) if kind == JSON else response.SerializeToString()


def error_body(error: GatewayError, kind: str) -> bytes:
    """Return the body of a failure, a `google.rpc.Status` with its first two fields: code and message."""
    code, message = _CODES.get(error.status, 13), str(error)
    if kind == JSON:
        return orjson.dumps({"code": code, "message": message})
    raw = message.encode()
    return bytes((0x08, code, 0x12)) + _varint(len(raw)) + raw


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _parse_json(body: bytes, request: Any, *levels: str) -> Work[None]:
    """Fill a request from OTLP's JSON, record by record; `levels`: names of the nested lists, outermost first."""
    try:
        raw = orjson.loads(body)
        if not isinstance(raw, dict):
            raise BadRequest("the body is no OTLP request: a JSON object is expected")
        yield from _fill(raw, request, levels)
    except (AttributeError, TypeError, orjson.JSONDecodeError, ParseError, ValueError) as error:
        raise BadRequest(f"the body is no OTLP request: {error}") from None
    except RecursionError:
        raise BadRequest("the body is no OTLP request: it is nested too deeply") from None


def _fill(raw: dict[str, Any], message: Any, levels: Sequence[str]) -> Work[None]:
    """Fill a message from JSON; `levels`: the list to fill item by item, and those within its items."""
    items = None
    if levels:
        name, *rest = levels
        field = _snake_case(name)
        given = [key for key in {name, field} if key in raw]
        if len(given) > 1:
            raise ValueError(f"it has both '{name}' and '{field}'")
        items = raw.pop(given[0]) if given else None
    ParseDict(_with_base64_ids(raw), message, ignore_unknown_fields=True)
    yield
    for item in items or ():
        yield from _fill(item, getattr(message, field).add(), rest)


def _snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), name)


def _with_base64_ids(node: Any) -> Any:
    """Convert the ids of OTLP's JSON from hexadecimal to the base64 of protobuf's JSON."""
    if isinstance(node, dict):
        return {
            name: _base64_id(value) if name in _IDS and value is not None else _with_base64_ids(value)
            for name, value in node.items()
        }
    if isinstance(node, list):
        return [_with_base64_ids(item) for item in node]
    return node


def _base64_id(hexadecimal: Any) -> str:
    """Convert an id; a malformed one gets an impossible length, so that only its span is rejected."""
    try:
        raw = bytes.fromhex(hexadecimal)
    except (TypeError, ValueError):
        raw = _NO_ID
    return base64.b64encode(raw).decode()
