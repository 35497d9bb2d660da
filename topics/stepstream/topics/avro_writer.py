"""Compile an Avro schema into a Python function that encodes a record, about four times as fast as fastavro.

Most fields of an event are short strings, nulls and empty arrays, for which interpreting the schema costs more than
encoding. `compile_writer` generates one function for each record type, with one expression a field. Its output equals
fastavro's. A value that does not match the schema raises any exception; the caller then lets fastavro name the fault.
"""

import io
import struct
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import fastavro

from stepstream.topics.encoded_array import EncodedArray
from stepstream.topics.varints import HALF, SIZES, encode_integers, zigzag

Writer = Callable[[Any], bytes]

_ARRAY_CODES = {"int": "i", "long": "q", "float": "f", "double": "d"}
"""Codes of Python's `struct` for Avro's number types."""


def compile_writer(schema: Any, name: str = "") -> Writer:
    """Return the writer of a record type.

    Args:
        schema: result of `fastavro.parse_schema`.
        name: full name of a record type inside the schema; default: the outermost.
    """
    write = _function(schema, name, defaults=False)
    complete = cache(partial(_function, schema, name, defaults=True))

    def writer(record: Any) -> bytes:
        try:
            return write(record)
        except KeyError:  # rare: a test for each missing field would slow down every record
            return complete()(record)

    return writer


def compile_split_writer(schema: Any, varying: Sequence[str]) -> Callable[[Any], list[bytes]]:
    """Return a function that encodes the parts of a record before, between and after some fields.

    For many records that differ in these fields only, the caller encodes the other parts once.

    Args:
        schema: as for `compile_writer`.
        varying: names of the fields, in the schema's order.

    Raises:
        ValueError: a field is not in the schema, or out of order.
    """
    runs: list[list[Any]] = [[]]
    remaining = list(varying)
    for field in schema["fields"]:
        if remaining and field["name"] == remaining[0]:
            del remaining[0]
            runs.append([])
        else:
            runs[-1].append(field)
    if remaining:
        raise ValueError(f"{remaining[0]} is no field of {schema['name']} that comes after those before it")
    writers = [compile_writer({**schema, "fields": run}) for run in runs]
    return lambda record: [writer(record) for writer in writers]


def _function(schema: Any, wanted: str, *, defaults: bool) -> Writer:
    """Return the compiled function. A missing field gets its default with `defaults`, else it raises KeyError."""
    named = schema["__named_schemas"]
    source = _Source(named, defaults)
    name = source.record(named[wanted] if wanted else schema)
    lines = "\n".join(source.functions)
    space: dict[str, Any] = {
        "SIZE": SIZES,
        "HALF": HALF,
        "zigzag": zigzag,
        "join": b"".join,
        "pack_double": struct.Struct("<d").pack,
        "pack_float": struct.Struct("<f").pack,
        "pack": struct.pack,
        "integers": encode_integers,
        "Encoded": EncodedArray,
        "splice": _splice,
        **source.constants,
    }
    exec(compile(lines, f"<avro writer of {name}>", "exec"), space)
    write: Writer = space[name]
    return write


class _Source:
    """Collects the source of one function for each record type: one join of the expressions of its fields."""

    def __init__(self, named: dict[str, Any], defaults: bool) -> None:
        self._defaults = defaults
        self.functions: list[str] = []
        self.constants: dict[str, Any] = {}
        self._named = named
        self._names: dict[str, str] = {}

    def record(self, schema: Any) -> str:
        """Generate the function of a record type, and return its name."""
        full: str = schema["name"]
        if full in self._names:
            return self._names[full]
        name = self._names[full] = "write_" + full.replace(".", "_")
        fields = [f"        {self._value(field['type'], self._get(field))}," for field in schema["fields"]]
        self.functions.append("\n".join([f"def {name}(record):", "    return join((", *fields, "    ))"]))
        return name

    def _get(self, field: Any) -> str:
        if not self._defaults or "default" not in field:
            return f"record[{field['name']!r}]"
        # fastavro's rule: a missing field gets its default.
        default = f"D{len(self.constants)}"
        self.constants[default] = field["default"]
        return f"record.get({field['name']!r}, {default})"

    def _value(self, schema: Any, value: str) -> str:
        """Return comma-separated expressions of the bytes of a value; `value` is the value's expression."""
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, list):
            return self._union(kind, value)
        if kind in ("string", "bytes"):
            coded = f"{value}.encode()" if kind == "string" else f"bytes(memoryview({value}))"
            return f"SIZE[n] if (n := len(b := {coded})) < HALF else zigzag(n), b"
        if kind in ("int", "long"):
            return f"SIZE[v] if 0 <= (v := {value}) < HALF else zigzag(v)"
        if kind in ("double", "float"):
            return f"pack_{kind}({value})"
        if kind == "boolean":
            return f"b'\\1' if {value} else b'\\0'"
        if kind == "enum":
            codes = f"E{len(self.constants)}"
            self.constants[codes] = {symbol: zigzag(index) for index, symbol in enumerate(schema["symbols"])}
            return f"{codes}[{value}]"
        if kind == "record":
            return f"{self.record(schema)}({value})"
        if kind == "array":
            return self._array(schema, value)
        if kind == "map":
            return f"{self._interpreted(schema)}(v) if (v := {value}) else b'\\0'"
        raise ValueError(f"no writer of {kind}")

    def _union(self, kinds: list[Any], value: str) -> str:
        if len(kinds) != 2 or kinds[0] != "null":
            raise ValueError(f"no writer of the union {kinds}")
        inner = self._value(kinds[1], "u")
        return f"b'\\0' if (u := {value}) is None else join((b'\\2', {inner}))"

    def _array(self, schema: Any, value: str) -> str:
        items = schema["items"]
        if isinstance(items, str) and items in _ARRAY_CODES:  # token ids and logprobs: encoded in one call
            code = _ARRAY_CODES[items]
            many = f"pack(f'<{{len(a)}}{code}', *a)" if items in ("float", "double") else f"integers(a, {code!r})"
            one = f"join((zigzag(len(a)), {many}, b'\\0'))"
            return f"(splice(a, {items!r}) if type(a) is Encoded else {one}) if (a := {value}) else b'\\0'"
        if items == "boolean":
            one = f"{self._interpreted(schema)}(a)"
            return f"(splice(a, {items!r}) if type(a) is Encoded else {one}) if (a := {value}) else b'\\0'"
        inner = self._value(items, "i")
        one = f"join(({inner}))" if items in ("string", "bytes") else inner
        return f"join((zigzag(len(a)), *[{one} for i in a], b'\\0')) if (a := {value}) else b'\\0'"

    def _interpreted(self, schema: Any) -> str:
        """Return the name of a function that encodes by fastavro."""
        name = f"A{len(self.constants)}"
        self.constants[name] = _fastavro_writer(schema)
        return name


def _splice(array: EncodedArray, kind: str) -> bytes:
    """Return the encoding of an array that is encoded already."""
    if array.kind != kind:
        raise TypeError(f"an array of {array.kind}, not of {kind}")
    return b"".join((zigzag(len(array)), array.items, b"\0"))


def _fastavro_writer(schema: Any) -> Writer:
    def write(values: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, values)
        return out.getvalue()

    return write
