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

from stepstream.services.gateway.otlp.attributes import (
    Attributes,
    decode_attributes,
    decode_value,
    integer,
    string_bytes,
)
from stepstream.services.gateway.otlp.calls import TOOL_ATTRIBUTES as OFFERS
from stepstream.services.gateway.otlp.calls import milliseconds, sampling_of
from stepstream.services.gateway.otlp.identity import IDENTITY_ATTRIBUTES
from stepstream.services.gateway.otlp.logfire import ATTRIBUTES as LOGFIRE
from stepstream.services.gateway.otlp.messages import STEP, finish_reason
from stepstream.services.gateway.otlp.spans import AGENT, CALL, OPERATIONS, Resource, Role, Span, has_failed, span_of
from stepstream.topics.avro_writer import compile_writer
from stepstream.topics.varints import HALF, SIZES, zigzag

_NO_MESSAGES, _NO_ID = b"\x0a\x02[]", b"\x0a\x00"
_UNUSUAL = (
    IDENTITY_ATTRIBUTES
    | LOGFIRE
    | OFFERS
    | {
        "agent.name",
        "error.type",
        "gen_ai.agent.name",
        "gen_ai.output.type",
        "gen_ai.request.frequency_penalty",
        "gen_ai.request.min_p",
        "gen_ai.request.presence_penalty",
        "gen_ai.request.repetition_penalty",
        "gen_ai.request.top_k",
        "gen_ai.system_instructions",
        "gen_ai.usage.completion_tokens",
        "gen_ai.usage.prompt_tokens",
        "llm.cost.total",
        "llm.finish_reason",
        "llm.invocation_parameters",
        "llm.model_name",
        "llm.token_count.completion",
        "llm.token_count.prompt",
        "stepstream.step_index",
    }
)
"""All other attributes of a call that `assembly` reads."""
_NO_MORE_FIELDS = b"\0\0\0\0"
"""Rest of a message after its content: no tool calls, `tool_call_id`, `name` or `reasoning`."""
_NO_RESULT = b"\0\0\0"
"""Rest of a tool call after its arguments: no `result`, `error` or `duration_ms`."""
_CACHE_SIZE = 4096
_pack_float = struct.Struct("<f").pack
_write_sampling = compile_writer(STEP, "stepstream.Sampling")
_SAMPLING = tuple(f"gen_ai.request.{name}" for name in ("temperature", "top_p", "max_tokens", "seed"))


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

    __slots__ = ("agent", "calls", "is_plain", "shared", "spans", "trace_id")

    def __init__(self, trace_id: str) -> None:
        self.trace_id = trace_id
        self.spans: list[tuple[Any, Mapping[str, bytes], Resource]] = []
        self.calls: list[PlainCall] = []
        self.agent: Span | None = None
        """The root span if it is an agent's run."""
        self.shared: Attributes = {}
        """Attributes of the calls' resource."""
        self.is_plain = True

    def add(self, raw: Any, values: Mapping[str, bytes], resource: Resource) -> None:
        """Add a span of a `TraceRequest`; `values`: its encoded attributes by name.

        Raises:
            DecodeError, UnicodeDecodeError: an attribute is malformed.
        """
        self.spans.append((raw, values, resource))
        if self.is_plain:
            self.is_plain = self._add_plain(raw, values, resource)

    def _add_plain(self, raw: Any, values: Mapping[str, bytes], resource: Resource) -> bool:
        role = _role(values.get("gen_ai.operation.name", b""))
        if role is CALL:
            if self.calls and self.shared is not resource.attributes:
                return False
            call = _read(raw, values)
            if call is None:
                return False
            self.shared = resource.attributes
            self.calls.append(call)
            return True
        if role is not AGENT or self.agent is not None or raw.parent_span_id or raw.events:
            return False
        self.agent = span_of(raw, decode_attributes(values), resource)
        return IDENTITY_ATTRIBUTES.isdisjoint(values) and OFFERS.isdisjoint(values)

    def finish(self) -> bool:
        """Sort the calls after the last `add`; return False if `assembly` must handle the trace."""
        calls = self.calls
        parent_id = bytes.fromhex(self.agent.span_id) if self.agent is not None else b""
        if not self.is_plain or not calls:
            return False
        ids = {parent_id.hex()} if self.agent is not None else set()
        for call in calls:
            if call.parent_id != parent_id:
                return False
            ids.add(call.span_id)
        calls.sort()
        return len(ids) == len(self.spans)


def _read(raw: Any, values: Mapping[str, bytes]) -> PlainCall | None:
    """Return the plain call of a span; None: not plain."""
    if not _UNUSUAL.isdisjoint(values) or raw.events or has_failed(raw.status):
        return None
    get = values.get
    answer = _answer(string_bytes(get("gen_ai.output.messages", b"")))
    prompt = _messages(string_bytes(get("gen_ai.input.messages", _NO_MESSAGES)))
    response_id = string_bytes(get("gen_ai.response.id", _NO_ID))
    if prompt is None or answer is None or response_id is None:
        return None
    response, finish = answer
    request = _request_fields(
        get("gen_ai.request.model"),
        get("gen_ai.response.model"),
        get("gen_ai.request.temperature"),
        get("gen_ai.request.top_p"),
        get("gen_ai.request.max_tokens"),
        get("gen_ai.request.seed"),
        get("gen_ai.response.finish_reasons"),
        finish,
    )
    first_token = _first_token(get("gen_ai.response.time_to_first_chunk"))
    if request is None or first_token is None:
        return None
    start, end = raw.start_time_unix_nano, raw.end_time_unix_nano
    return PlainCall(
        start,
        raw.span_id.hex(),
        raw.parent_span_id,
        response_id.decode(),
        prompt,
        response,
        *request,
        b"\2" + _pack_float((end - start) / 1e6) if end >= start > 0 else b"\0",
        first_token,
        _tokens(get("gen_ai.usage.input_tokens")),
        _tokens(get("gen_ai.usage.output_tokens")),
    )


def avro_string(raw: bytes) -> bytes:
    """Encode UTF-8 as an Avro string."""
    size = len(raw)
    return (SIZES[size] if size < HALF else zigzag(size)) + raw


def _messages(raw: bytes | None) -> list[bytes] | None:
    """Encode the messages of JSON with typed parts; None: `messages.part_messages` must read them."""
    if raw is None:
        return None
    messages: list[bytes] = []
    try:
        for item in orjson.loads(raw):
            message = _message(item)
            if message is None:
                return None
            messages.append(message)
    except (TypeError, orjson.JSONDecodeError):
        return None
    return messages


def _answer(raw: bytes | None) -> tuple[bytes, str] | None:
    """Encode the first message and return its finish reason; None: not plain."""
    if raw is None:
        return None
    try:
        first = orjson.loads(raw)[0]
        message = _message(first)
    except (IndexError, KeyError, TypeError, orjson.JSONDecodeError):
        return None
    return None if message is None else (message, finish_reason(first.get("finish_reason")))


def _message(item: Any) -> bytes | None:
    """Encode a message of texts and tool calls like `messages.encode_message`; None: not plain."""
    try:
        if "name" in item:
            return None
        role, content = item["role"].encode(), b""
        calls: list[bytes] = []
        for part in item["parts"]:
            kind = part["type"]
            if kind == "text":
                piece = part["content"].encode()
                content = content + piece if content else piece
            elif kind == "tool_call":
                calls += (_utf8(part["id"]), _utf8(part["name"]), _utf8(part["arguments"]), _NO_RESULT)
            else:
                return None
    except (AttributeError, KeyError, TypeError):
        return None
    if not calls and len(role) < HALF and len(content) < HALF:
        return b"".join((SIZES[len(role)], role, SIZES[len(content)], content, _NO_MORE_FIELDS))
    listed = b"".join((zigzag(len(calls) // 4), *calls, b"\0")) if calls else b"\0"
    return b"".join((avro_string(role), avro_string(content), listed, _NO_MORE_FIELDS[1:]))


def _utf8(part: Any) -> bytes:
    """Encode `attributes.text` of a value."""
    if type(part) is str:
        return avro_string(part.encode())
    return b"\0" if part is None else avro_string(orjson.dumps(part, default=str))


@lru_cache(_CACHE_SIZE)
def _role(raw: bytes) -> Role | None:
    operation = string_bytes(raw)
    return None if operation is None else OPERATIONS.get(operation.decode())


@lru_cache(_CACHE_SIZE)
def _request_fields(
    request_model: bytes | None,
    response_model: bytes | None,
    temperature: bytes | None,
    top_p: bytes | None,
    max_tokens: bytes | None,
    seed: bytes | None,
    finish_reasons: bytes | None,
    message_finish: str,
) -> tuple[bytes, bytes, bytes] | None:
    """Encode model, sampling and finish reason, which many calls share; None: the model is no text."""
    model = decode_value(request_model) if request_model is not None else None
    if not model:
        model = decode_value(response_model) if response_model is not None else None
    if model is not None and not isinstance(model, str):
        return None
    raw = zip(_SAMPLING, (temperature, top_p, max_tokens, seed), strict=True)
    sampling = sampling_of({name: decode_value(values) for name, values in raw if values is not None}, {})
    finish = finish_reason(decode_value(finish_reasons)) if finish_reasons is not None else ""
    return (
        avro_string((model or "").encode()),
        _write_sampling(sampling),
        avro_string((finish or message_finish).encode()),
    )


@lru_cache(_CACHE_SIZE)
def _tokens(raw: bytes | None) -> bytes:
    count = integer(decode_value(raw)) if raw is not None else None
    return b"\0" if count is None else b"\2" + zigzag(count)


def _first_token(raw: bytes | None) -> bytes | None:
    """Encode milliseconds; None: beyond a float."""
    duration = milliseconds(decode_value(raw)) if raw is not None else None
    try:
        return b"\0" if duration is None else b"\2" + _pack_float(duration)
    except OverflowError:
        return None
