"""Find Avro schemas whose records cannot be decoded safely.

Arrays of items without bytes: a few bytes may claim 2^62 items, and decoding never ends. Records that contain
themselves: a record nests them deeper than the decoder's stack, and the process dies.
"""

from collections.abc import Mapping
from typing import Any


def has_empty_items(parsed: Any) -> bool:
    """Return True if a schema parsed by fastavro has an array of `null`, or of records or `fixed` without bytes."""
    named: dict[str, Any] = {}
    arrays: list[Any] = []
    _collect(parsed, named, arrays)
    return any(_is_empty(array["items"], named, ()) for array in arrays)


def is_recursive(parsed: Any, within: tuple[str, ...] = ()) -> bool:
    """Return True if a record of a schema parsed by fastavro contains its own type; `within` names those around it."""
    if isinstance(parsed, str):
        return parsed in within
    if isinstance(parsed, list):
        return any(is_recursive(branch, within) for branch in parsed)
    within = (*within, parsed["name"]) if "name" in parsed else within
    fields = [field["type"] for field in parsed.get("fields", ())]
    children = [parsed["type"], parsed.get("items", "null"), parsed.get("values", "null"), *fields]
    return any(is_recursive(child, within) for child in children)


def _collect(schema: Any, named: dict[str, Any], arrays: list[Any]) -> None:
    """List the named types by their full names, and the arrays."""
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, named, arrays)
    elif isinstance(schema, Mapping):
        if "name" in schema:
            named[schema["name"]] = schema
        if schema["type"] == "array":
            arrays.append(schema)
        for child in (schema["type"], schema.get("items"), schema.get("values")):
            _collect(child, named, arrays)
        for field in schema.get("fields", ()):
            _collect(field["type"], named, arrays)


def _is_empty(schema: Any, named: Mapping[str, Any], within: tuple[str, ...]) -> bool:
    """Return True if every value of a type has no bytes; `within` names the records around it."""
    if isinstance(schema, str) and schema in named:
        return schema not in within and _is_empty(named[schema], named, (*within, schema))
    if isinstance(schema, str):
        return schema == "null"
    if not isinstance(schema, Mapping):
        return False  # a union has the index of its branch
    match schema["type"]:
        case "record" | "error":
            return all(_is_empty(field["type"], named, (*within, schema["name"])) for field in schema["fields"])
        case "fixed":
            return bool(schema["size"] == 0)
        case kind:
            return _is_empty(kind, named, within)
