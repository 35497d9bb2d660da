"""Read plain traces: convert their calls from OTLP's bytes directly to Avro's.

Plain traces are the most common: successful calls of the current conventions without identity attributes, alone or
directly below an agent's root span. `assembly` handles every trace; this path skips its objects. `fast_steps` writes
the steps. Both paths give the same bytes.
"""

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
from orjson import loads

from stepstream.services.gateway.otlp.attributes import (
    Attributes,
    decode_attributes,
    decode_value,
    integer,
)
from stepstream.services.gateway.otlp.calls import TOOL_ATTRIBUTES as OFFERS
from stepstream.services.gateway.otlp.calls import milliseconds
from stepstream.services.gateway.otlp.identity import IDENTITY_ATTRIBUTES
from stepstream.services.gateway.otlp.messages import finish_reason
from stepstream.services.gateway.otlp.span_layout import (
    OPERATION,
    KnownCall,
    avro_string,
    learn_layout,
    role_of_operation,
    text_of,
)
from stepstream.services.gateway.otlp.spans import AGENT, CALL, Resource, has_failed
from stepstream.services.gateway.otlp.trace import name_of
from stepstream.services.gateway.otlp.wire import split_entries
from stepstream.topics.varints import HALF, SIZES, zigzag

_NO_MORE_FIELDS = b"\0\0\0\0"
"""Rest of a message after its content: no tool calls, `tool_call_id`, `name` or `reasoning`."""
_NO_RESULT = b"\0\0\0"
"""Rest of a tool call after its arguments: no `result`, `error` or `duration_ms`."""
_CACHE_SIZE = 4096
_new = tuple.__new__
"""Makes a named tuple in half the time of its constructor."""
_pack_float = struct.Struct("<f").pack


class PlainCall(NamedTuple):
    """A call, as encoded fields of its step."""

    start_ns: int
    span_id: str
    parent_id: bytes
    response_id: str
    prompt: list[bytes]
    """Encoded messages."""
    response: bytes
    model: bytes
    sampling: bytes
    finish_reason: bytes
    duration_ms: bytes
    first_token_ms: bytes
    usage_prompt_tokens: bytes
    usage_response_tokens: bytes


class TraceSpans:
    """The spans of one trace in one request; tracks whether all are plain."""

    __slots__ = ("agent_id", "agent_name", "calls", "is_plain", "shared", "spans", "trace_id")

    def __init__(self, trace_id: str) -> None:
        self.trace_id = trace_id
        self.spans: list[tuple[Any, Mapping[str, bytes] | None, Resource]] = []
        """Each span of a `TraceRequest`, its encoded attributes by name (None: not split), and its resource."""
        self.calls: list[PlainCall] = []
        self.agent_id: str | None = None
        """Id of the root span if it is an agent's run."""
        self.agent_name = ""
        self.shared: Attributes = {}
        """Attributes of the calls' resource."""
        self.is_plain = True

    def add(self, raw: Any, call: KnownCall | None, values: Mapping[str, bytes] | None, resource: Resource) -> None:
        """Add a span of a `TraceRequest`; `call` or `values`: its attributes, read by a known layout or split.

        Raises:
            DecodeError, UnicodeDecodeError: an attribute is malformed.
        """
        self.spans.append((raw, values, resource))
        if self.is_plain:
            self.is_plain = self._add_plain(raw, call, values or {}, resource)

    def _add_plain(self, raw: Any, known: KnownCall | None, values: Mapping[str, bytes], resource: Resource) -> bool:
        if known is None:
            role = role_of_operation(values.get(OPERATION, b""))
            if role is AGENT:
                return self._add_agent(raw, values)
            known = learn_layout(raw.attributes, values) if role is CALL else None
            if known is None:
                return False
        if self.calls and self.shared is not resource.attributes:
            return False
        call = _read(raw, known)
        if call is None:
            return False
        self.shared = resource.attributes
        self.calls.append(call)
        return True

    def _add_agent(self, raw: Any, values: Mapping[str, bytes]) -> bool:
        if self.agent_id is not None or raw.parent_span_id or raw.events:
            return False
        attributes = decode_attributes(values)
        has_failed(raw.status)  # raises if it is malformed
        self.agent_id, self.agent_name = raw.span_id.hex(), name_of(attributes)
        return IDENTITY_ATTRIBUTES.isdisjoint(values) and OFFERS.isdisjoint(values)

    def finish(self) -> bool:
        """Sort the calls after the last `add`; return False if `assembly` must handle the trace."""
        calls = self.calls
        if not self.is_plain or not calls:
            return False
        parent_id, ids = b"", set()
        if self.agent_id is not None:
            parent_id = bytes.fromhex(self.agent_id)
            ids.add(self.agent_id)
        for call in calls:
            if call.parent_id != parent_id:
                return False
            ids.add(call.span_id)
        calls.sort()
        return len(ids) == len(self.spans)


def _read(raw: Any, known: KnownCall) -> PlainCall | None:
    """Return the plain call of a span; None: not plain."""
    if raw.events or has_failed(raw.status):
        return None
    (input_messages, output_messages, response_id, first_chunk, input_tokens, output_tokens, *_), starts, shared = known
    model, sampling, reason = shared
    try:
        answer = loads(text_of(output_messages, starts[1]))[0]
        response = _message(answer)
        prompt = [*map(_message, loads(text_of(input_messages, starts[0])))] if input_messages else []
        identity = text_of(response_id, starts[2]).decode() if response_id else ""
    except (AttributeError, IndexError, KeyError, TypeError, orjson.JSONDecodeError):
        return None
    first_token = _first_token(first_chunk)
    if first_token is None:
        return None
    start, end = raw.start_time_unix_nano, raw.end_time_unix_nano
    fields = (
        start,
        raw.span_id.hex(),
        raw.parent_span_id,
        identity,
        prompt,
        response,
        model,
        sampling,
        reason or avro_string(finish_reason(answer.get("finish_reason")).encode()),
        b"\2" + _pack_float((end - start) / 1e6) if end >= start > 0 else b"\0",
        first_token,
        _tokens(input_tokens),
        _tokens(output_tokens),
    )
    return _new(PlainCall, fields)


_ROLES = {role: avro_string(role.encode()) for role in ("system", "user", "assistant", "tool", "developer")}


def _message(item: Any) -> bytes:
    """Encode a message of texts and tool calls like `messages.encode_message`.

    Raises:
        AttributeError, KeyError, TypeError: it is not plain; `messages.part_messages` must read it.
    """
    role, parts = item["role"], item["parts"]
    role = _ROLES.get(role) or avro_string(role.encode())
    if "name" in item:
        raise TypeError
    if len(parts) == 1 and (part := parts[0])["type"] == "text":
        content = part["content"].encode()
        size = len(content)
        return b"".join((role, SIZES[size] if size < HALF else zigzag(size), content, _NO_MORE_FIELDS))
    content, calls = b"", [b""]
    for part in parts:
        kind = part["type"]
        if kind == "text":
            piece = part["content"].encode()
            content = content + piece if content else piece
        elif kind == "tool_call":
            calls += _utf8(part["id"]), _utf8(part["name"]), _utf8(part["arguments"]), _NO_RESULT
        else:
            raise TypeError
    calls[0] = zigzag(len(calls) // 4)
    size = len(content)
    end = (*calls, _NO_MORE_FIELDS) if len(calls) > 1 else (_NO_MORE_FIELDS,)
    return b"".join((role, SIZES[size] if size < HALF else zigzag(size), content, *end))


def _utf8(part: Any) -> bytes:
    """Encode `attributes.text` of a value."""
    raw = part.encode() if type(part) is str else b"" if part is None else orjson.dumps(part, default=str)
    size = len(raw)
    return (SIZES[size] if size < HALF else zigzag(size)) + raw


@lru_cache(_CACHE_SIZE)
def _tokens(entry: bytes) -> bytes:
    count = integer(_value(entry)) if entry else None
    return b"\0" if count is None else b"\2" + zigzag(count)


def _first_token(entry: bytes) -> bytes | None:
    """Encode milliseconds; None: beyond a float."""
    if not entry:
        return b"\0"
    duration = milliseconds(_value(entry))
    try:
        return b"\0" if duration is None else b"\2" + _pack_float(duration)
    except OverflowError:
        return None


def _value(entry: bytes) -> Any:
    """Decode an entry's value."""
    (value,) = split_entries([entry]).values()
    return decode_value(value)
