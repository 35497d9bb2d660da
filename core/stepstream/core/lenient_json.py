"""JSON as Python's and JavaScript's own parsers take it: orjson refuses some of what their writers write. Pure."""

import json
from typing import Any

import orjson

MOST = 8 * 1_048_576
"""Bytes beyond which what orjson refuses is not looked at again where others wait."""
_LONGEST_INTEGER = 18
"""Digits of numbers that orjson writes as they are."""


def loads(data: bytes | str, most: int | None = MOST) -> Any:
    """A value: NaN and infinities are numbers, and half of a surrogate pair (text that was cut) is U+FFFD.

    Args:
        data: the text.
        most: bytes or characters of it beyond which what orjson refuses is not looked at again; None: no limit.

    Raises:
        ValueError: it is not JSON at all.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        if most is not None and len(data) > most:
            raise
    try:
        return sound(json.loads(data, parse_int=number))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def number(digits: str) -> int | float:
    """A whole number: as such where it can be written again, else as a float."""
    return int(digits) if len(digits) <= _LONGEST_INTEGER else float(digits)


def sound(value: Any) -> Any:
    """A parsed value with texts that can be written."""
    if isinstance(value, str):
        return sound_text(value)
    if isinstance(value, list):
        return [sound(item) for item in value]
    if isinstance(value, dict):
        return {sound(name): sound(item) for name, item in value.items()}
    return value


def sound_text(text: str) -> str:
    """The text, with U+FFFD for each half of a surrogate pair that is alone: as such it cannot be written."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
