"""Calls that say all that there is to say themselves, as most do, from their bytes to those of the log.

`assembly` can tell any trace. What it makes of these traces is written here without the objects in between: calls of
today's conventions, on their own or right below an agent's root span, that name nobody and ran into no error. The
records are the same to the byte.
"""

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from stepstream.services.gateway.otlp.attributes import Attributes, decoded, string, value, whole
from stepstream.services.gateway.otlp.calls import NAMES as OFFERS
from stepstream.services.gateway.otlp.calls import milliseconds, sampling_of
from stepstream.services.gateway.otlp.identity import NAMES
from stepstream.services.gateway.otlp.messages import STEP, finish_reason
from stepstream.services.gateway.otlp.spans import AGENT, CALL, OPERATIONS, Resource, Role, Span, has_failed, span_of
from stepstream.topics.avro_writer import HALF, SIZES, compiled, zigzag

_NO_MESSAGES, _NO_ID = b"\x0a\x02[]", b"\x0a\x00"
_UNUSUAL = (
    NAMES
    | OFFERS
    | {
        "agent.name",
        "error.type",
        "gen_ai.agent.name",
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
"""All other attributes that `assembly` asks such a call for."""
_ALONE = b"\0\0\0\0"
"""A message after its content: no tool calls, no `tool_call_id`, `name`, `reasoning`."""
_NOT_RUN = b"\0\0\0"
"""A tool call after its arguments: no `result`, `error`, `duration_ms`."""
_REMEMBERED = 4096
_pack_float = struct.Struct("<f").pack
_write_sampling = compiled(STEP, "stepstream.Sampling")
_SAMPLING = tuple(f"gen_ai.request.{name}" for name in ("temperature", "top_p", "max_tokens", "seed"))


class PlainCall(NamedTuple):
    """A call, in pieces of its step's bytes."""

    start_ns: int
    span_id: str
    parent_id: bytes
    response_id: str
    prompt: list[bytes]
    """One for each message."""
    response: bytes
    model: bytes
    sampling: bytes
    finish_reason: bytes
    duration_ms: bytes
    first_token_ms: bytes
    usage_prompt_tokens: bytes
    usage_response_tokens: bytes


class Gathered:
    """The spans of one trace in one request, and whether they are all plain."""

    __slots__ = ("agent", "calls", "is_plain", "shared", "spans", "trace_id")

    def __init__(self, trace_id: str) -> None:
        self.trace_id = trace_id
        self.spans: list[tuple[Any, Mapping[str, bytes], Resource]] = []
        self.calls: list[PlainCall] = []
        self.agent: Span | None = None
        """The root, where it is an agent's run."""
        self.shared: Attributes = {}
        """Of the resource of the calls."""
        self.is_plain = True

    def add(self, raw: Any, held: Mapping[str, bytes], resource: Resource) -> None:
        """Takes in a span of a `TraceRequest`; `held` are its attributes.

        Raises:
            DecodeError, UnicodeDecodeError: an attribute is malformed.
        """
        self.spans.append((raw, held, resource))
        if self.is_plain:
            self.is_plain = self._take(raw, held, resource)

    def _take(self, raw: Any, held: Mapping[str, bytes], resource: Resource) -> bool:
        role = _role(held.get("gen_ai.operation.name", b""))
        if role is CALL:
            if self.calls and self.shared is not resource.attributes:
                return False
            call = _read(raw, held)
            if call is None:
                return False
            self.shared = resource.attributes
            self.calls.append(call)
            return True
        if role is not AGENT or self.agent is not None or raw.parent_span_id or raw.events:
            return False
        self.agent = span_of(raw, decoded(held), resource)
        return NAMES.isdisjoint(held) and OFFERS.isdisjoint(held)

    def settle(self) -> bool:
        """Puts the calls in order once all spans are here; false where the trace is one for `assembly`."""
        calls = self.calls
        above = bytes.fromhex(self.agent.span_id) if self.agent is not None else b""
        if not self.is_plain or not calls:
            return False
        ids = {above.hex()} if self.agent is not None else set()
        for call in calls:
            if call.parent_id != above:
                return False
            ids.add(call.span_id)
        calls.sort()
        return len(ids) == len(self.spans)


def _read(raw: Any, held: Mapping[str, bytes]) -> PlainCall | None:
    """The call that a span is; None where it is none of these."""
    if not _UNUSUAL.isdisjoint(held) or raw.events or has_failed(raw.status):
        return None
    get = held.get
    answer = _answer(string(get("gen_ai.output.messages", b"")))
    prompt = _messages(string(get("gen_ai.input.messages", _NO_MESSAGES)))
    response_id = string(get("gen_ai.response.id", _NO_ID))
    if prompt is None or answer is None or response_id is None:
        return None
    response, said = answer
    asked = _asked(
        get("gen_ai.request.model"),
        get("gen_ai.response.model"),
        get("gen_ai.request.temperature"),
        get("gen_ai.request.top_p"),
        get("gen_ai.request.max_tokens"),
        get("gen_ai.request.seed"),
        get("gen_ai.response.finish_reasons"),
        said,
    )
    first_token = _first_token(get("gen_ai.response.time_to_first_chunk"))
    if asked is None or first_token is None:
        return None
    start, end = raw.start_time_unix_nano, raw.end_time_unix_nano
    return PlainCall(
        start,
        raw.span_id.hex(),
        raw.parent_span_id,
        response_id.decode(),
        prompt,
        response,
        *asked,
        b"\2" + _pack_float((end - start) / 1e6) if end >= start > 0 else b"\0",
        first_token,
        _tokens(get("gen_ai.usage.input_tokens")),
        _tokens(get("gen_ai.usage.output_tokens")),
    )


def text_of(raw: bytes) -> bytes:
    """UTF-8 as Avro's string."""
    size = len(raw)
    return (SIZES[size] if size < HALF else zigzag(size)) + raw


def _messages(raw: bytes | None) -> list[bytes] | None:
    """The messages that JSON of typed parts spells; None where that is for `messages.part_messages`."""
    if raw is None:
        return None
    found: list[bytes] = []
    try:
        for item in orjson.loads(raw):
            message = _message(item)
            if message is None:
                return None
            found.append(message)
    except (TypeError, orjson.JSONDecodeError):
        return None
    return found


def _answer(raw: bytes | None) -> tuple[bytes, str] | None:
    """The first message and its finish reason."""
    if raw is None:
        return None
    try:
        first = orjson.loads(raw)[0]
        message = _message(first)
    except (IndexError, KeyError, TypeError, orjson.JSONDecodeError):
        return None
    return None if message is None else (message, finish_reason(first.get("finish_reason")))


def _message(item: Any) -> bytes | None:
    """What `messages.encoded` writes of a message of texts and tool calls."""
    try:
        if "name" in item:
            return None
        role, said = item["role"].encode(), b""
        calls: list[bytes] = []
        for part in item["parts"]:
            kind = part["type"]
            if kind == "text":
                content = part["content"].encode()
                said = said + content if said else content
            elif kind == "tool_call":
                calls += (_utf8(part["id"]), _utf8(part["name"]), _utf8(part["arguments"]), _NOT_RUN)
            else:
                return None
    except (AttributeError, KeyError, TypeError):
        return None
    if not calls and len(role) < HALF and len(said) < HALF:
        return b"".join((SIZES[len(role)], role, SIZES[len(said)], said, _ALONE))
    listed = b"".join((zigzag(len(calls) // 4), *calls, b"\0")) if calls else b"\0"
    return b"".join((text_of(role), text_of(said), listed, _ALONE[1:]))


def _utf8(part: Any) -> bytes:
    """What Avro writes of `values.text`."""
    if type(part) is str:
        return text_of(part.encode())
    return b"\0" if part is None else text_of(orjson.dumps(part, default=str))


@lru_cache(_REMEMBERED)
def _role(raw: bytes) -> Role | None:
    said = string(raw)
    return None if said is None else OPERATIONS.get(said.decode())


@lru_cache(_REMEMBERED)
def _asked(
    asked: bytes | None,
    answered: bytes | None,
    temperature: bytes | None,
    top_p: bytes | None,
    max_tokens: bytes | None,
    seed: bytes | None,
    finish_reasons: bytes | None,
    said: str,
) -> tuple[bytes, bytes, bytes] | None:
    """Model, sampling and finish reason, which are the same for many calls; None for a model that is no text."""
    model = value(asked) if asked is not None else None
    if not model:
        model = value(answered) if answered is not None else None
    if model is not None and not isinstance(model, str):
        return None
    raw = zip(_SAMPLING, (temperature, top_p, max_tokens, seed), strict=True)
    sampling = sampling_of({name: value(held) for name, held in raw if held is not None}, {})
    finish = finish_reason(value(finish_reasons)) if finish_reasons is not None else ""
    return text_of((model or "").encode()), _write_sampling(sampling), text_of((finish or said).encode())


@lru_cache(_REMEMBERED)
def _tokens(raw: bytes | None) -> bytes:
    count = whole(value(raw)) if raw is not None else None
    return b"\0" if count is None else b"\2" + zigzag(count)


def _first_token(raw: bytes | None) -> bytes | None:
    """Milliseconds; None where they are too many."""
    found = milliseconds(value(raw)) if raw is not None else None
    try:
        return b"\0" if found is None else b"\2" + _pack_float(found)
    except OverflowError:
        return None
