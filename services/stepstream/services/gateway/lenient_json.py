"""JSON as Python's and JavaScript's own parsers take it: orjson refuses some of what their writers write. Pure."""

import json
from typing import Any

import orjson

_MOST = 8 * 1_048_576
"""Bytes beyond which what orjson refuses is not looked at again: it would keep all other calls waiting."""
_LONGEST_INTEGER = 18
"""Digits of numbers that orjson writes as they are."""


def loads(data: bytes) -> Any:
    """A value: NaN and infinities are numbers, and half of a surrogate pair (text that was cut) is U+FFFD.

    Raises:
        ValueError: it is not JSON at all.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        if len(data) > _MOST:
            raise
    try:
        return _sound(json.loads(data, parse_int=_number))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) <= _LONGEST_INTEGER else float(digits)


def _sound(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_sound(item) for item in value]
    if isinstance(value, dict):
        return {_sound(name): _sound(item) for name, item in value.items()}
    return value
