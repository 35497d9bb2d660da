"""Load the schema files, and resolve their references into self-contained schemas.

A registry subject holds one self-contained schema. So the first reference `"Message"` in `Step.avsc` is replaced by the
definition of `Message`, and later references keep the name, as the Avro specification requires.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any

NAMESPACE = "stepstream"
PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


class SchemaError(Exception):
    """A schema does not exist, or refers to one that does not. The message lists the names that exist."""


@cache
def names() -> tuple[str, ...]:
    """Return the sorted names of all types that have a file."""
    folder = files(__package__)
    return tuple(sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".avsc")))


@cache
def source(name: str) -> Any:
    """Return one file as parsed JSON with unresolved references. Treat it as read-only.

    Raises:
        SchemaError: the file does not exist.
    """
    if name not in names():
        raise SchemaError(f"no schema named {name!r}; there are: {', '.join(names())}")
    return json.loads((files(__package__) / f"{name}.avsc").read_text(encoding="utf-8"))


@cache
def schema(name: str) -> dict[str, Any]:
    """Return one self-contained schema as parsed JSON. Treat it as read-only.

    Raises:
        SchemaError: the type, or a type it refers to, has no file.
    """
    resolved = _inline(name, set())
    assert isinstance(resolved, dict)
    return resolved


@cache
def schema_text(name: str) -> str:
    """Return one self-contained schema as the JSON text that is registered."""
    return json.dumps(schema(name), ensure_ascii=False)


def _inline(node: Any, seen: set[str]) -> Any:
    if isinstance(node, str):
        if node in PRIMITIVES:
            return node
        if node in seen:
            return f"{NAMESPACE}.{node}"
        return _inline(source(node), seen)
    if isinstance(node, list):
        return [_inline(branch, seen) for branch in node]
    kind = node["type"]
    if kind == "array":
        return {**node, "items": _inline(node["items"], seen)}
    if kind == "map":
        return {**node, "values": _inline(node["values"], seen)}
    seen.add(node["name"])
    if kind == "record":
        return {**node, "fields": [{**f, "type": _inline(f["type"], seen)} for f in node["fields"]]}
    return dict(node)
