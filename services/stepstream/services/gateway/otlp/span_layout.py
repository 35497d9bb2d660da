"""Find a plain call's attributes by their places: an instrumentation writes the same ones in the same order.

A `SpanLayout` holds the names of one span's attributes. For the next span with as many, comparing the names costs less
than splitting the attributes. Calls that have an attribute of `_UNUSUAL` have no layout.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from stepstream.services.gateway.otlp.attributes import STRING, decode_attributes, string_bytes
from stepstream.services.gateway.otlp.calls import TOOL_ATTRIBUTES as OFFERS
from stepstream.services.gateway.otlp.calls import sampling_of
from stepstream.services.gateway.otlp.identity import IDENTITY_ATTRIBUTES
from stepstream.services.gateway.otlp.logfire import ATTRIBUTES as LOGFIRE
from stepstream.services.gateway.otlp.messages import STEP, finish_reason
from stepstream.services.gateway.otlp.spans import CALL, OPERATIONS, Role
from stepstream.services.gateway.otlp.wire import split_entries
from stepstream.topics.avro_writer import compile_writer
from stepstream.topics.varints import HALF, SIZES, zigzag

OPERATION = "gen_ai.operation.name"
VARYING = (
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.response.id",
    "gen_ai.response.time_to_first_chunk",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
)
"""Attributes that differ between calls."""
SHARED = frozenset(
    {
        "gen_ai.operation.name",
        "gen_ai.request.model",
        "gen_ai.response.model",
        "gen_ai.request.temperature",
        "gen_ai.request.top_p",
        "gen_ai.request.max_tokens",
        "gen_ai.request.seed",
        "gen_ai.response.finish_reasons",
    }
)
"""Attributes that many calls have in common."""
NAME_SIZE = 128
"""Names shorter than this have a length of one byte."""
NO_ENTRY = b""
"""Entry of an absent attribute."""


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
_CACHE_SIZE = 4096
_MAX_SHARED_BYTES = 4096
"""Largest size of the entries of one call in a cache."""
_MAX_SIMILAR, _MAX_COUNTS = 8, 128
"""Layouts with the same number of attributes, and such numbers."""
_MAX_ATTRIBUTES = 256
_startswith = bytes.startswith
_write_sampling = compile_writer(STEP, "stepstream.Sampling")


class SpanLayout(NamedTuple):
    """The places of the attributes of a call."""

    entries_of: Callable[[Sequence[bytes]], tuple[bytes, ...]]
    """Returns the entries whose names must be those of `prefixes`: first those of `VARYING`, then unread ones."""
    shared_of: Callable[[Sequence[bytes]], tuple[bytes, ...]]
    """Returns the entries of `SHARED` and, last, an empty one. The caller must know their names."""
    prefixes: tuple[bytes, ...]
    starts: tuple[int, ...]
    """Places of the values in the entries of `VARYING`."""


def layout_of(entries: Sequence[bytes]) -> SpanLayout | None:
    """Return the layout of a span's attributes; None: an entry has an unusual encoding, or a name is there twice.

    Args:
        entries: the encoded attributes and, last, `NO_ENTRY`.
    """
    places: dict[bytes, int] = {}
    for place, entry in enumerate(entries[:-1]):
        size = len(entry)
        if size < 3 or entry[0] != 0x0A or entry[1] >= NAME_SIZE or size <= (end := entry[1] + 2) or entry[end] != 0x12:
            return None
        places[entry[: end + 1]] = place
    if len(places) != len(entries) - 1:
        return None
    varying = [places.pop(_prefix(name), -1) for name in VARYING]
    shared = sorted(places.pop(_prefix(name)) for name in SHARED if _prefix(name) in places)
    checked = [*varying, *places.values(), -1]  # at least two places, or `itemgetter` returns no tuple
    shared += [-1, -1]
    prefixes = [_prefix(name) if place >= 0 else NO_ENTRY for name, place in zip(VARYING, varying, strict=True)]
    return SpanLayout(
        itemgetter(*checked),
        itemgetter(*shared),
        (*prefixes, *places, NO_ENTRY),
        tuple(map(len, prefixes)),
    )


def _prefix(name: str) -> bytes:
    raw = name.encode()
    return b"\x0a" + bytes((len(raw),)) + raw + b"\x12"


def text_of(entry: bytes, start: int) -> bytes:
    """Return the unchecked UTF-8 of an entry whose value begins at `start`.

    Raises:
        TypeError: it is no text.
        DecodeError: it is malformed.
    """
    size = len(entry) - start
    if 3 <= size <= 128:  # the lengths of value and text have one byte
        if entry[start] == size - 1 and entry[start + 1] == STRING and entry[start + 2] == size - 3:
            return entry[start + 3 :]
    elif 133 <= size < 16_000:  # both have two bytes
        value, kind, low, high = entry[start], entry[start + 2], entry[start + 3], entry[start + 4]
        is_value = value > 0x7F and value & 0x7F | entry[start + 1] << 7 == size - 2
        if is_value and kind == STRING and low > 0x7F and low & 0x7F | high << 7 == size - 5:
            return entry[start + 5 :]
    (encoded,) = split_entries([entry]).values()
    text = string_bytes(encoded)
    if text is None:
        raise TypeError
    return text


class _SharedFields(NamedTuple):
    """The encoded fields that many calls have in common."""

    model: bytes
    sampling: bytes
    finish_reason: bytes
    """Empty: that of the answer's message."""


KnownCall = tuple[tuple[bytes, ...], tuple[int, ...], _SharedFields]
"""A call whose attributes have a known layout: its entries of `span_layout.VARYING`, then unread ones; the places of
their values; its other fields."""


class _SharedCache(dict[tuple[bytes, ...], _SharedFields | None]):
    """The fields of entries that many calls have in common; None: not a plain call."""

    def __missing__(self, entries: tuple[bytes, ...]) -> _SharedFields | None:
        fields = _shared_fields(split_entries(entry for entry in entries if entry))
        if fields is not None and sum(map(len, entries)) <= _MAX_SHARED_BYTES:
            if len(self) >= _CACHE_SIZE:
                self.clear()
            self[entries] = fields
        return fields


_layouts: dict[int, list[SpanLayout]] = {}
"""Layouts of plain calls, by number of attributes; the newest first."""
_shared = _SharedCache()


def known_call(entries: list[bytes]) -> KnownCall | None:
    """Return a call by a known layout of its encoded attributes; None: its attributes must be split.

    Raises:
        DecodeError, UnicodeDecodeError: an attribute is malformed.
    """
    entries.append(NO_ENTRY)
    for entries_of, shared_of, prefixes, starts in _layouts.get(len(entries), ()):
        found = entries_of(entries)
        if all(map(_startswith, found, prefixes)):
            fields = _shared[shared_of(entries)]
            if fields is not None:
                return found, starts, fields
    return None


def learn_layout(raw: Sequence[bytes], values: Mapping[str, bytes]) -> KnownCall | None:
    """Remember the layout of a call's attributes; None: it is not plain."""
    if len(values) > _MAX_ATTRIBUTES or not _UNUSUAL.isdisjoint(values):
        return None
    entries = [*raw, NO_ENTRY]
    layout = layout_of(entries)
    if layout is None:
        return None
    similar = _layouts.setdefault(len(entries), [])
    similar.insert(0, layout)
    del similar[_MAX_SIMILAR:]
    while len(_layouts) > _MAX_COUNTS:
        del _layouts[next(iter(_layouts))]
    return known_call([*raw])


def _shared_fields(values: Mapping[str, bytes]) -> _SharedFields | None:
    """Encode the fields; None: an attribute is none of `span_layout.SHARED`, or it is not a plain call."""
    get = values.get
    if role_of_operation(get(OPERATION, b"")) is not CALL or not values.keys() <= SHARED:
        return None
    decoded = decode_attributes(values)
    model = decoded.get("gen_ai.request.model") or decoded.get("gen_ai.response.model")
    if model is not None and not isinstance(model, str):
        return None
    finish = decoded.get("gen_ai.response.finish_reasons")
    reason = finish_reason(finish) if finish is not None else ""
    return _SharedFields(
        avro_string((model or "").encode()),
        _write_sampling(sampling_of(decoded, {})),
        avro_string(reason.encode()) if reason else b"",
    )


@lru_cache(_CACHE_SIZE)
def role_of_operation(raw: bytes) -> Role | None:
    """Return the role of a span by its encoded operation name; None: no name, or none that has a role."""
    operation = string_bytes(raw)
    return None if operation is None else OPERATIONS.get(operation.decode())


def avro_string(raw: bytes) -> bytes:
    """Encode UTF-8 as an Avro string."""
    size = len(raw)
    return (SIZES[size] if size < HALF else zigzag(size)) + raw
