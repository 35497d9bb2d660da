"""Decode OTLP's attribute values into Python's."""

import base64
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

Attributes = dict[str, Any]
STRING, INTEGER, DOUBLE = 0x0A, 0x18, 0x21
"""First bytes of values of these kinds: field and wire type."""
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_unpack_double = struct.Struct("<d").unpack


def decode_attributes(raw: Mapping[str, bytes]) -> Attributes:
    """Decode attributes by name from a map of `wire.TraceRequest`.

    Raises:
        DecodeError, UnicodeDecodeError: a value is malformed.
    """
    return {name: decode_value(encoded) for name, encoded in raw.items()}


def decode_value(raw: bytes) -> Any:
    """Decode one encoded `AnyValue`. Raises as `decode_attributes` does."""
    utf8 = string_bytes(raw)
    if utf8 is not None:
        return utf8.decode()
    if raw and raw[0] == DOUBLE and len(raw) == 9:
        return _unpack_double(raw[1:])[0]
    message = AnyValue.FromString(raw)
    return value_of(message, message.WhichOneof("value"))


def string_bytes(raw: bytes) -> bytes | None:
    """Return the unchecked UTF-8 of an encoded string value; None: another kind, or unusual encoding."""
    size = len(raw)
    if size < 2 or raw[0] != STRING:
        return None
    if size < 130:
        return raw[2:] if raw[1] == size - 2 else None
    if size < 16_387:
        return raw[3:] if raw[1] & 0x7F | raw[2] << 7 == size - 3 and raw[1] > 0x7F else None
    return None


def attributes_of(pairs: Iterable[KeyValue]) -> Attributes:
    """Return attributes by name; the last of duplicates wins."""
    attributes: Attributes = {}
    for pair in pairs:
        message = pair.value
        # Speed: most values are strings, most others positive integers, so try both before `WhichOneof`.
        attributes[pair.key] = (
            message.string_value or message.int_value or value_of(message, message.WhichOneof("value"))
        )
    return attributes


def value_of(message: AnyValue, kind: str | None) -> Any:
    """Return one value; bytes as base64 text, as in OTLP's JSON."""
    if kind == "double_value":
        return message.double_value
    if kind is None:
        return None
    if kind == "array_value":
        return [item.string_value or value_of(item, item.WhichOneof("value")) for item in message.array_value.values]
    if kind == "kvlist_value":
        return attributes_of(message.kvlist_value.values)
    if kind == "bytes_value":
        return base64.b64encode(message.bytes_value).decode()
    return getattr(message, kind)


def text(value: Any) -> str:
    """Return a value as text: a string itself, None as empty text, anything else as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value, default=str).decode()


def structure(value: Any) -> Any:
    """Return a structured attribute, parsed if it is JSON text; other text unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def number(value: Any) -> float | None:
    """Return a finite number as a float; None: no number."""
    if type(value) is float:
        return value if value - value == 0.0 else None
    return float(value) if type(value) is int and abs(value) < 2**1000 else None


def integer(value: Any, bits: int = 63) -> int | None:
    """Return an integer, also from decimal text or a float, within signed `bits + 1` bits; None: anything else."""
    if type(value) is int:
        return value if -(2**bits) < value < 2**bits else None
    if isinstance(value, str):
        value = int(value) if _INTEGER.fullmatch(value) else None
    finite = number(value)
    return int(value) if finite is not None and abs(finite) < 2**bits else None
