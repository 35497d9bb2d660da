"""Exchange plain data between a solution and its tests, one JSON array a line. It is copied into both sandboxes.

Only values of the exact built-in types cross: None, bool, int, float, str, bytes, list, tuple, dict, set, frozenset.
A reader rebuilds them, so no method of the sender's objects (`__eq__`, `__hash__`…) ever runs on its side.
"""

import json
from typing import Any

MAX_LINE_BYTES = 1 << 20
_MAX_DEPTH = 60
_SEQUENCES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


class NotPlainData(Exception):
    """The value is of another type, or too deep or large; the message names the type."""


def encode(value: Any) -> bytes:
    """Return a line.

    Raises:
        NotPlainData: the value holds something else.
    """
    line = json.dumps(_packed(value, 0)).encode("ascii") + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise NotPlainData(f"{len(line)} bytes, and {MAX_LINE_BYTES} are allowed")
    return line


def decode(line: bytes) -> Any:
    """Return the value of a line, which may be hostile.

    Raises:
        NotPlainData: the line is something else.
    """
    try:
        return _unpacked(json.loads(line), 0)
    except (ValueError, TypeError, LookupError, RecursionError, MemoryError, OverflowError) as error:
        raise NotPlainData(f"a line that is no plain data ({type(error).__name__})") from None


def _packed(value: Any, depth: int) -> Any:
    kind = type(value)
    if depth > _MAX_DEPTH:
        raise NotPlainData(f"deeper than {_MAX_DEPTH} levels")
    if value is None or kind is bool:
        return value
    if kind is int:
        return ["int", hex(value)]
    if kind is float:
        return ["float", value.hex()]
    if kind is str:
        return value
    if kind is bytes:
        return ["bytes", value.hex()]
    if kind is dict:
        return ["dict", [[_packed(key, depth + 1), _packed(item, depth + 1)] for key, item in value.items()]]
    if kind.__name__ in _SEQUENCES and kind is _SEQUENCES[kind.__name__]:
        return [kind.__name__, [_packed(item, depth + 1) for item in value]]
    raise NotPlainData(f"a value of type {kind.__name__}")


def _unpacked(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise NotPlainData(f"deeper than {_MAX_DEPTH} levels")
    if value is None or type(value) is bool or type(value) is str:
        return value
    kind, content = value
    if kind == "int":
        return int(content, 16)
    if kind == "float":
        return float.fromhex(content)
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "dict":
        return {_unpacked(key, depth + 1): _unpacked(item, depth + 1) for key, item in content}
    return _SEQUENCES[kind]([_unpacked(item, depth + 1) for item in content])
