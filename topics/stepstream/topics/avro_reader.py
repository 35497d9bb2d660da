"""Compile an Avro schema into a Python function that decodes a record and keeps its number arrays encoded.

`compile_reader` generates one function for each record type, with straight code for each field. A record reads as by
fastavro, except that an array of numbers is an `EncodedArray`, unless it is empty. That takes a third of fastavro's
time for a step. Bytes that fastavro would read in an unusual way, or not at all, raise any exception; the caller then
lets fastavro read them or name the fault.
"""

import struct
from collections.abc import Callable
from typing import Any

from stepstream.topics.encoded_array import NUMBER_TYPES, EncodedArray

Reader = Callable[[bytes, int], tuple[dict[str, Any], int]]
"""Returns the record that begins at a position, and the position after it, which may lie beyond the bytes' end."""

_FIXED_BYTES = {"float": 4, "double": 8, "boolean": 1}
_HIGH = bytes(range(0x80, 0x100))
"""Bytes of a varint before its last one."""
_FEW = 8
"""Missing varints below which an estimate of their bytes saves nothing."""
_SHARE = 0.95
"""Part of the estimated bytes to take: too many must be taken again."""
_CLASSES = b"z" + b"l" * 0x7F + b"h" * 0x80
"""Class of each byte of a varint: zero, other last byte, byte before the last."""


def compile_reader(schema: Any) -> Reader:
    """Return the reader of a record type.

    Args:
        schema: result of `fastavro.parse_schema`.

    Raises:
        ValueError: the schema has a type for which there is no reader.
    """
    source = _Source(schema["__named_schemas"])
    name = source.record(schema)
    space: dict[str, Any] = {
        "varint": _varint,
        "length": _length,
        "numbers": _numbers,
        "unpack_float": struct.Struct("<f").unpack_from,
        "unpack_double": struct.Struct("<d").unpack_from,
        "BOOLEANS": (False, True),
        **source.constants,
    }
    exec(compile("\n".join(source.functions), f"<avro reader of {name}>", "exec"), space)
    read: Reader = space[name]
    return read


class _Source:
    """Collects the source of one function for each record type.

    In it, `b` are the bytes, `p` is the position, and `n` the zigzag code of a length or an integer.
    """

    def __init__(self, named: dict[str, Any]) -> None:
        self.functions: list[str] = []
        self.constants: dict[str, Any] = {}
        self._named = named
        self._names: dict[str, str] = {}
        self._variables = 0

    def record(self, schema: Any) -> str:
        """Generate the function of a record type, and return its name."""
        full: str = schema["name"]
        if full in self._names:
            return self._names[full]
        name = self._names[full] = "read_" + full.replace(".", "_")
        if not schema["fields"]:
            raise ValueError(f"no reader of {full}, which takes no bytes: an array could have any number of them")
        lines, entries = [], []
        for field in schema["fields"]:
            variable = self._variable()
            lines += self._value(field["type"], variable)
            entries.append(f"{field['name']!r}: {variable}")
        self.functions += [f"def {name}(b, p):", *_indented(lines), f"    return {{{', '.join(entries)}}}, p"]
        return name

    def _variable(self) -> str:
        self._variables += 1
        return f"v{self._variables}"

    def _value(self, schema: Any, to: str) -> list[str]:
        """Return the lines that read a value and assign it to `to`."""
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, list):
            return self._union(kind, to)
        if kind in ("string", "bytes"):
            text = ".decode()" if kind == "string" else ""
            return [*_LENGTH, "e = p + (n >> 1)", f"{to} = b[p:e]{text}", "p = e"]
        if kind in ("int", "long"):
            return [*_CODE, "if n > 127: n, p = varint(b, p)", f"{to} = n >> 1 ^ -(n & 1)"]
        if kind in ("float", "double"):
            return [f"{to}, = unpack_{kind}(b, p)", f"p += {_FIXED_BYTES[kind]}"]
        if kind == "boolean":
            return [f"{to} = BOOLEANS[b[p]]", "p += 1"]
        if kind == "enum":
            symbols = f"E{len(self.constants)}"
            self.constants[symbols] = {2 * index: symbol for index, symbol in enumerate(schema["symbols"])}
            return [*_CODE, f"{to} = {symbols}[n]"]
        if kind == "record":
            return [f"{to}, p = {self.record(schema)}(b, p)"]
        if kind == "array":
            return self._array(schema["items"], to)
        if kind == "map":
            return self._blocks(f"{to} = {{}}", self._entry(schema["values"], to))
        raise ValueError(f"no reader of {kind}")

    def _union(self, kinds: list[Any], to: str) -> list[str]:
        if len(kinds) != 2 or kinds[0] != "null":
            raise ValueError(f"no reader of the union {kinds}")
        inner = _indented(self._value(kinds[1], to))
        return [*_CODE, f"if n == 0: {to} = None", "elif n == 2:", *inner, "else: raise ValueError"]

    def _array(self, items: Any, to: str) -> list[str]:
        if isinstance(items, str) and items in NUMBER_TYPES:
            return [
                "if b[p]:",
                f"    {to}, p = numbers(b, p, {items!r})",
                "else:",
                f"    {to} = []",
                "    p += 1",
            ]
        item = self._variable()
        return self._blocks(f"{to} = []", [*self._value(items, item), f"{to}.append({item})"])

    def _entry(self, values: Any, to: str) -> list[str]:
        key, value = self._variable(), self._variable()
        return [*self._value("string", key), *self._value(values, value), f"{to}[{key}] = {value}"]

    def _blocks(self, empty: str, item: list[str]) -> list[str]:
        """Read blocks of items. Each item takes a byte or more, so that no count exceeds the bytes."""
        return [empty, *_LENGTH, "while n:", "    for _ in range(n >> 1):", *_indented(item, 8), *_indented(_LENGTH)]


_CODE = ["n = b[p]", "p += 1"]
_LENGTH = [*_CODE, "if n > 127 or n & 1: n, p = length(b, p)"]


def _indented(lines: list[str], spaces: int = 4) -> list[str]:
    return [" " * spaces + line for line in lines]


def _varint(data: bytes, end: int) -> tuple[int, int]:
    """Return the code of 64 bits that begins before `end`, and the position after it."""
    code, shift, position = 0, 0, end - 1
    while True:
        byte = data[position]
        position += 1
        code |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if code >> 64:
        raise OverflowError(code)
    return code, position


def _length(data: bytes, end: int) -> tuple[int, int]:
    """As `_varint`, for a length, which is not negative. The negative count of a block needs fastavro."""
    code, position = _varint(data, end)
    if code & 1:
        raise ValueError(code)
    return code, position


def _numbers(data: bytes, position: int, kind: str) -> tuple[EncodedArray, int]:
    """Read an array that is not empty: one block or more, each with or without its size."""
    total = 0
    blocks: list[bytes] = []
    while True:
        code, position = _varint(data, position + 1)
        if not code:
            break
        count, size = (code >> 1) ^ -(code & 1), None
        if count < 0:
            count = -count
            size, position = _length(data, position + 1)
        end = position + count * _FIXED_BYTES[kind] if kind in _FIXED_BYTES else _end_of_integers(data, position, count)
        if end >= len(data) or (size is not None and size >> 1 != end - position):
            raise ValueError(kind)
        blocks.append(data[position:end])
        total, position = total + count, end
    items = blocks[0] if len(blocks) == 1 else b"".join(blocks)
    if kind == "boolean" and items.strip(b"\0\1"):
        raise ValueError(kind)
    return EncodedArray(kind, total, items), position


def _end_of_integers(data: bytes, position: int, count: int) -> int:
    """Return the position after `count` varints.

    Raises:
        ValueError: one is cut off, longer than needed, or longer than four bytes.
    """
    end, missing, bytes_each = position, count, 1.0
    while missing:
        # As many bytes hold at most as many last bytes. The bytes before tell how many more to take at once.
        size = missing if missing < _FEW else max(missing, int(missing * bytes_each))
        chunk = data[end : end + size]
        found = len(chunk.translate(None, _HIGH))
        if found > missing:
            bytes_each = 1.0
            continue
        if len(chunk) < missing:
            raise ValueError(count)
        end += len(chunk if found < missing else chunk.rstrip(_HIGH))
        missing -= found
        bytes_each = _SHARE * len(chunk) / found if found else 1.0
    classes = data[position:end].translate(_CLASSES)
    if b"hhhh" in classes or b"hz" in classes:
        raise ValueError(count)
    return end
