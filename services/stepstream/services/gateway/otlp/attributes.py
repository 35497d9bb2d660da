"""OTLP's attribute values as Python's."""

import base64
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

Attributes = dict[str, Any]
STRING, INTEGER, DOUBLE = 0x0A, 0x18, 0x21
"""First bytes of values of these kinds: field and wire type."""
_unpack_double = struct.Struct("<d").unpack


def decoded(raw: Mapping[str, bytes]) -> Attributes:
    """Attributes by name, of a map of `protocol`.

    Raises:
        DecodeError, UnicodeDecodeError: a value is malformed.
    """
    return {name: value(held) for name, held in raw.items()}


def value(raw: bytes) -> Any:
    """One value as it is on the wire, an encoded `AnyValue`. Raises as `decoded` does."""
    said = string(raw)
    if said is not None:
        return said.decode()
    if raw and raw[0] == DOUBLE and len(raw) == 9:
        return _unpack_double(raw[1:])[0]
    held = AnyValue.FromString(raw)
    return value_of(held, held.WhichOneof("value"))


def string(raw: bytes) -> bytes | None:
    """The UTF-8 of a value that is a string and nothing else; it is not checked."""
    size = len(raw)
    if size < 2 or raw[0] != STRING:
        return None
    if size < 130:
        return raw[2:] if raw[1] == size - 2 else None
    if size < 16_387:
        return raw[3:] if raw[1] & 0x7F | raw[2] << 7 == size - 3 and raw[1] > 0x7F else None
    return None


def attributes_of(pairs: Iterable[KeyValue]) -> Attributes:
    """Attributes by name; of a name that comes twice, the last."""
    found: Attributes = {}
    for pair in pairs:
        held = pair.value
        # Nearly all are strings, which need no asking what they are; of the others most are positive whole numbers.
        found[pair.key] = held.string_value or held.int_value or value_of(held, held.WhichOneof("value"))
    return found


def value_of(held: AnyValue, kind: str | None) -> Any:
    """One value; bytes as base64 text, as OTLP's JSON has them."""
    if kind == "double_value":
        return held.double_value
    if kind is None:
        return None
    if kind == "array_value":
        return [item.string_value or value_of(item, item.WhichOneof("value")) for item in held.array_value.values]
    if kind == "kvlist_value":
        return attributes_of(held.kvlist_value.values)
    if kind == "bytes_value":
        return base64.b64encode(held.bytes_value).decode()
    return getattr(held, kind)


def text(value: Any) -> str:
    """A value as text: JSON unless it is a string; nothing is empty."""
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value, default=str).decode()


def structure(value: Any) -> Any:
    """A structured attribute, which may be given as JSON text; text that is no JSON stays as it is."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if type(value) is float:
        return value if value - value == 0.0 else None
    return float(value) if type(value) is int and abs(value) < 2**1000 else None


def whole(value: Any, bits: int = 63) -> int | None:
    """A whole number, also as decimal text or a float, within signed `bits + 1` bits; else None."""
    if type(value) is int:
        return value if -(2**bits) < value < 2**bits else None
    if isinstance(value, str):
        value = int(value) if value.lstrip("-").isdecimal() and len(value) < 20 else None
    found = number(value)
    return int(value) if found is not None and abs(found) < 2**bits else None
