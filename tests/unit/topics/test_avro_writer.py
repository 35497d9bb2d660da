"""Compiled writers and fastavro write the same bytes for every record type of the log."""

import io
import struct
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepstream.schemas import schema
from stepstream.topics.avro_writer import compile_writer
from stepstream.topics.catalogue import TOPICS

PARSED: dict[str, Any] = {
    name: fastavro.parse_schema(schema(name)) for name in sorted({topic.schema for topic in TOPICS.values()})
}
WRITERS = {name: compile_writer(parsed) for name, parsed in PARSED.items()}
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


def values(kind: Any, named: dict[str, Any]) -> st.SearchStrategy[Any]:
    if isinstance(kind, str):
        return PLAIN[kind] if kind in PLAIN else values(named[kind], named)
    if isinstance(kind, list):
        return st.one_of([values(each, named) for each in kind])
    if kind["type"] == "array":
        return st.lists(values(kind["items"], named), max_size=3)
    if kind["type"] == "map":
        return st.dictionaries(st.text(max_size=9), values(kind["values"], named), max_size=3)
    if kind["type"] == "enum":
        return st.sampled_from(kind["symbols"])
    if kind["type"] == "record":
        return st.fixed_dictionaries({field["name"]: values(field["type"], named) for field in kind["fields"]})
    return values(kind["type"], named)


def by_fastavro(name: str, record: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, PARSED[name], record)
    return out.getvalue()


@pytest.mark.parametrize("name", PARSED)
@settings(max_examples=25)
@given(data=st.data())
def test_output_equals_fastavros(name: str, data: st.DataObject) -> None:
    record = data.draw(values(PARSED[name], PARSED[name]["__named_schemas"]))
    assert WRITERS[name](record) == by_fastavro(name, record)


def test_long_text_and_many_items_have_long_lengths() -> None:
    record = {
        "event_id": "x" * 100_000,
        "occurred_at_us": 1,
        "producer": "é" * 9_000,
        "consent": "train",
        "trajectory_id": "t",
        "name": "n",
        "source": "s",
    }
    assert WRITERS["Feedback"](record) == by_fastavro("Feedback", record)  # the rest are defaults


@pytest.mark.parametrize("wrong", [{"event_id": 7}, {"occurred_at_us": "now"}, {"consent": "maybe"}, {"value": "much"}])
def test_a_value_of_the_wrong_type_raises(wrong: dict[str, Any]) -> None:
    record = {"event_id": "e", "occurred_at_us": 1, "producer": "p", "consent": "train", "trajectory_id": "t"}
    with pytest.raises((AttributeError, TypeError, KeyError, struct.error)):
        WRITERS["Feedback"](record | {"name": "n", "source": "s"} | wrong)
