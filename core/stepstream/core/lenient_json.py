"""Parse JSON that Python or JavaScript wrote, including values that orjson rejects. Pure."""

import json
from collections.abc import Iterable
from typing import Any

import orjson

MAX_FALLBACK_BYTES = 8 * 1_048_576
"""Default size limit for parsing a text again after orjson rejected it: the slower parser holds up other calls."""
_WRITABLE_LEVELS = 254
"""Levels of nesting that orjson can write; it reads 1,024."""
_MAX_INTEGER_DIGITS = 18
"""Digits of an integer that orjson can write."""


def loads(data: bytes | str, max_fallback: int | None = MAX_FALLBACK_BYTES) -> Any:
    """Parse JSON. NaN and infinities are floats, a lone half of a surrogate pair (cut text) becomes U+FFFD.

    Args:
        data: the text.
        max_fallback: bytes or characters above which a text that orjson rejects is not parsed again; None: unlimited.

    Raises:
        ValueError: the text is not JSON.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        if max_fallback is not None and len(data) > max_fallback:
            raise
    try:
        return with_valid_text(json.loads(data, parse_int=parse_int))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_int(digits: str) -> int | float:
    """Return an integer if orjson can write it, else a float."""
    return int(digits) if len(digits) <= _MAX_INTEGER_DIGITS else float(digits)


def is_too_deep(value: Any) -> bool:
    """Return True if a parsed value is nested too deeply for orjson to write it."""
    level = [value]
    for _ in range(_WRITABLE_LEVELS):
        level = [inner for outer in level if isinstance(outer, dict | list) for inner in _children(outer)]
    return any(isinstance(inner, dict | list) for inner in level)


def _children(outer: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return outer.values() if isinstance(outer, dict) else outer


def with_valid_text(value: Any) -> Any:
    """Return a parsed value in which every text can be encoded as UTF-8."""
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, list):
        return [with_valid_text(item) for item in value]
    if isinstance(value, dict):
        return {with_valid_text(name): with_valid_text(item) for name, item in value.items()}
    return value


def valid_text(text: str) -> str:
    """Return the text with U+FFFD for each lone half of a surrogate pair, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
