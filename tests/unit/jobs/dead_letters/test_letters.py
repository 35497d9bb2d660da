"""Filters select dead letters; a letter whose record was sent again is left out."""

from typing import Any

import pytest
from sample_records import T0_US

from stepstream.jobs.dead_letters.letters import LetterFilter, Letters
from stepstream.topics.events import DeadLetter, new_dead_letter


def letter(name: str, at: int = 0, **fields: Any) -> DeadLetter:
    defaults: dict[str, Any] = {
        "event_id": name,
        "occurred_at_us": T0_US + at,
        "job": "govern@1",
        "topic": "steps",
        "partition": 0,
        "offset": 7,
        "value_bytes": 10,
        "error": "unknown_schema",
        "reason": "no schema 7 in the registry",
    }
    return new_dead_letter(**defaults | fields)


LETTERS = Letters()
LETTERS.add(
    [
        letter("b", at=2, tenant="acme"),
        letter("a", at=1),
        letter("a", at=1),
        letter("c", at=3, topic="feedback", error="invalid", reason="too late", job="label@2", tenant="other"),
    ]
)


@pytest.mark.parametrize(
    ("conditions", "names"),
    [
        ({}, "abc"),
        ({"tenant": "acme"}, "b"),
        ({"topic": "feedback"}, "c"),
        ({"job": "govern"}, "ab"),
        ({"job": "label@2"}, "c"),
        ({"job": "lab"}, ""),
        ({"error": "unknown_schema", "reason": "schema 7"}, "ab"),
        ({"ids": frozenset({"a", "c"}), "reason": "late"}, "c"),
    ],
)
def test_letters_are_selected_oldest_first(conditions: dict[str, Any], names: str) -> None:
    assert [found["event_id"] for found in LETTERS.select(LetterFilter(**conditions))] == list(names)


def test_a_redriven_letter_is_left_out_in_any_order_of_reading() -> None:
    done = letter("x", redrives="a", job="redrive@1")
    for records in ([letter("a"), done], [done, letter("a")]):
        letters = Letters()
        letters.add(records)
        assert letters.select(LetterFilter()) == []
        assert [found["event_id"] for found in letters.select(LetterFilter(), with_redriven=True)] == ["a"]
