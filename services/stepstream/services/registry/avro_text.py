"""Reduce an Avro schema to one text: drop formatting, attribute order and redundant wrapping; keep defaults and docs.

The registry stores and compares `canonical` texts. For `normalize=true`, `normalised` also replaces namespaces by full
names and drops attributes that repeat a default of the specification.
"""

import json
import threading
import warnings
from functools import lru_cache
from typing import Any

import avro.errors
import avro.schema

from stepstream.services.registry import defaults, errors

MAX_BYTES = 900_000
"""Limit of a schema's text, so that it fits with its key into a record of Kafka's default 1 MB."""

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "error", "enum", "fixed"})
_COMPLEX = [*NAMED, "array", "map"]
_ORDER = [
    "type",
    "name",
    "namespace",
    "doc",
    "aliases",
    "fields",
    "symbols",
    "items",
    "values",
    "size",
    "default",
    "order",
    "logicalType",
    "precision",
    "scale",
]
_RANK = {name: rank for rank, name in enumerate(_ORDER)}
# All threads share Python's warning filters, which `catch_warnings` resets.
_parsing = threading.Lock()

Json = Any


@lru_cache(maxsize=4096)
def canonical(text: str) -> str:
    """Return the text under which the registry stores a schema.

    Raises:
        RegistryError: 42201, the text is not a valid Avro schema.
    """
    node = _load(text)
    try:
        result = _dump(_canonical(node))
        size = len(result.encode())
    except RecursionError:
        raise errors.invalid_schema("nested too deeply") from None
    except UnicodeEncodeError:
        raise errors.invalid_schema("it has half a surrogate pair, which UTF-8 cannot encode") from None
    if size > MAX_BYTES:
        raise errors.invalid_schema(f"longer than {MAX_BYTES} bytes")
    parse(result)
    return result


@lru_cache(maxsize=4096)
def normalised(text: str) -> str:
    """Return the canonical text with full names, to compare schemas of equal meaning.

    Raises:
        RegistryError: 42201, the text is not a valid Avro schema.
    """
    return _dump(_canonical(_full_names(json.loads(canonical(text)), "")))


@lru_cache(maxsize=4096)
def parse(canonical_text: str) -> avro.schema.Schema:
    """Return the schema as the `avro` package's object, with full names and aliases, and checked defaults.

    Raises:
        RegistryError: 42201, the schema is invalid.
    """
    try:
        full = _dump(_full_names(json.loads(canonical_text), ""))
        with _parsing, warnings.catch_warnings():
            # An unknown logical type is still a valid schema of its underlying type.
            warnings.simplefilter("ignore", avro.errors.IgnoredLogicalType)
            schema = avro.schema.parse(full)
        defaults.check(schema)
    except RecursionError:
        raise errors.invalid_schema("nested too deeply") from None
    # The package raises KeyError, TypeError and AttributeError for some malformed schemas.
    except (avro.errors.AvroException, ValueError, KeyError, TypeError, AttributeError) as error:
        raise errors.invalid_schema(str(error)) from None
    return schema


def _load(text: str) -> Json:
    if not text.strip():
        raise errors.invalid_schema("empty")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        # Confluent's parser also accepts a bare primitive name.
        if text.strip() in PRIMITIVES:
            return text.strip()
        raise errors.invalid_schema(f"not JSON: {error}") from None


def _dump(node: Json) -> str:
    return json.dumps(node, separators=(",", ":"), ensure_ascii=False)


def _canonical(node: Json) -> Json:
    if isinstance(node, list):
        return [_canonical(branch) for branch in node]
    if not isinstance(node, dict):
        return node
    if set(node) == {"type"} and node["type"] not in _COMPLEX:
        return _canonical(node["type"])
    result = {}
    for name in sorted(node, key=lambda name: (_RANK.get(name, len(_RANK)), name)):
        value = node[name]
        if name == "fields" and isinstance(value, list):
            value = [_canonical_field(field) for field in value]
        elif name in ("type", "items", "values"):
            value = _canonical(value)
        else:
            value = _sorted(value)
        result[name] = value
    return result


def _canonical_field(field: Json) -> Json:
    if not isinstance(field, dict):
        return field
    ordered = sorted(field, key=lambda name: (name != "name", _RANK.get(name, len(_RANK)), name))
    return {name: _canonical(field[name]) if name == "type" else _sorted(field[name]) for name in ordered}


def _sorted(value: Json) -> Json:
    """Sort the objects of a default or a custom property, which have no order."""
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value


def _full_names(node: Json, enclosing: str) -> Json:
    if isinstance(node, list):
        return [_full_names(branch, enclosing) for branch in node]
    if isinstance(node, str):
        return node if node in PRIMITIVES else _qualify(node, enclosing)
    if not isinstance(node, dict):
        return node
    kind = node.get("type")
    result = dict(node)
    inside = enclosing
    if isinstance(kind, str) and kind in NAMED:
        name, given = node.get("name"), result.pop("namespace", None)
        if not isinstance(name, str):
            raise ValueError(f"a type of kind {kind} has no name")
        full = _qualify(name, enclosing if given is None else str(given))
        inside = full.rpartition(".")[0]
        result["name"] = full
        if not inside and enclosing:
            result["namespace"] = ""
        _full_aliases(result, inside)
        if not isinstance(node.get("symbols", []), list):
            raise ValueError(f"symbols of enum {full} must be a list")  # the package would take a string's letters
        if isinstance(node.get("fields"), list):
            result["fields"] = [_full_field(field, inside) for field in node["fields"]]
    elif not isinstance(kind, str):
        result["type"] = _full_names(kind, enclosing)
    for part in ("items", "values"):
        if part in node:
            result[part] = _full_names(node[part], enclosing)
    return result


def _full_field(field: Json, enclosing: str) -> Json:
    if not isinstance(field, dict):
        return field
    result = {**field, "type": _full_names(field.get("type"), enclosing)}
    if result.get("order") == "ascending":
        del result["order"]
    if result.get("aliases") == []:
        del result["aliases"]
    return result


def _full_aliases(named: dict[str, Json], namespace: str) -> None:
    aliases = named.get("aliases")
    if aliases == []:
        del named["aliases"]
    elif isinstance(aliases, list):
        named["aliases"] = [_qualify(str(alias), namespace) for alias in aliases]


def _qualify(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"
