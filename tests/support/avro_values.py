"""Generate values of Avro schemas, and encode them by fastavro."""

import io
from typing import Any

import fastavro
from hypothesis import strategies as st

from stepstream.schemas import schema
from stepstream.topics.catalogue import TOPICS

PARSED: dict[str, Any] = {
    name: fastavro.parse_schema(schema(name)) for name in sorted({topic.schema for topic in TOPICS.values()})
}
PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "string": st.text(max_size=200),
    "bytes": st.binary(max_size=200),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "boolean": st.booleans(),
}


SHORT = PLAIN | dict.fromkeys(("int", "long"), st.integers(-(2**27), 2**27 - 1))
"""As `PLAIN`, with integers of up to four bytes."""


def values(
    kind: Any, named: dict[str, Any], items: dict[str, st.SearchStrategy[Any]] = PLAIN
) -> st.SearchStrategy[Any]:
    """Return the values of a schema; `items` has those of the plain types in arrays."""
    if isinstance(kind, str):
        return PLAIN[kind] if kind in PLAIN else values(named[kind], named, items)
    if isinstance(kind, list):
        return st.one_of([values(each, named, items) for each in kind])
    if kind["type"] == "array":
        of = kind["items"]
        return st.lists(items[of] if isinstance(of, str) and of in items else values(of, named, items), max_size=3)
    if kind["type"] == "map":
        return st.dictionaries(st.text(max_size=9), values(kind["values"], named, items), max_size=3)
    if kind["type"] == "enum":
        return st.sampled_from(kind["symbols"])
    if kind["type"] == "record":
        return st.fixed_dictionaries({field["name"]: values(field["type"], named, items) for field in kind["fields"]})
    return values(kind["type"], named, items)


def by_fastavro(name: str, record: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, PARSED[name], record)
    return out.getvalue()
