"""OTLP's attribute values as Python's."""

import base64
from collections.abc import Iterable
from typing import Any

import orjson
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

Attributes = dict[str, Any]


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
