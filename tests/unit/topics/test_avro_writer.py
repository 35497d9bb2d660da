"""Compiled writers and fastavro write the same bytes for every record type of the log."""

import struct
from typing import Any

import pytest
from avro_values import PARSED, by_fastavro, values
from hypothesis import given, settings
from hypothesis import strategies as st

from stepstream.topics.avro_writer import compile_writer

WRITERS = {name: compile_writer(parsed) for name, parsed in PARSED.items()}


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
