"""Check that each field's default is a value of its type, which the `avro` package does not check."""

from collections.abc import Iterable
from typing import Any

import avro.schema

_INT = range(-(2**31), 2**31)
_LONG = range(-(2**63), 2**63)


def check(schema: avro.schema.Schema) -> None:
    """Check every default in a schema.

    Raises:
        ValueError: a default does not fit; the message names the field.
    """
    for record in _records(schema, set()):
        for field in record.fields:
            if field.has_default and not fits(field.type, field.default):
                raise ValueError(
                    f"default {field.default!r} of field '{field.name}' of {record.fullname} is not a value of its type"
                )


def fits(schema: Any, value: Any) -> bool:
    """Return True if a default, as JSON, is a value of the type (for a union, of any branch: Avro 1.12)."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match schema.type:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            return is_number and isinstance(value, int) and value in (_INT if schema.type == "int" else _LONG)
        case "float" | "double":
            return is_number
        case "bytes" | "string":
            return isinstance(value, str)
        case "fixed":
            return isinstance(value, str) and len(value) == schema.size
        case "enum":
            return value in schema.symbols
        case "array":
            return isinstance(value, list) and all(fits(schema.items, item) for item in value)
        case "map":
            return isinstance(value, dict) and all(fits(schema.values, item) for item in value.values())
        case "union" | "error_union":
            return any(fits(branch, value) for branch in schema.schemas)
        case _:
            return isinstance(value, dict) and all(
                fits(field.type, value[field.name]) if field.name in value else field.has_default
                for field in schema.fields
            )


def _records(schema: Any, seen: set[int]) -> Iterable[Any]:
    if id(schema) in seen:
        return
    seen.add(id(schema))
    if isinstance(schema, avro.schema.RecordSchema):
        yield schema
        for field in schema.fields:
            yield from _records(field.type, seen)
    elif isinstance(schema, avro.schema.ArraySchema):
        yield from _records(schema.items, seen)
    elif isinstance(schema, avro.schema.MapSchema):
        yield from _records(schema.values, seen)
    elif isinstance(schema, avro.schema.UnionSchema):
        for branch in schema.schemas:
            yield from _records(branch, seen)
