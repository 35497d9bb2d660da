"""Literal sets have each number once, in texts of a limited size."""

import re

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.jobs.clickhouse import number_sets


@given(st.lists(st.integers(0, (1 << 64) - 1)))
def test_literals_have_every_number_once_and_a_limited_size(numbers: list[int]) -> None:
    found: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(number_sets, "LITERAL_NUMBERS", 3)
        for text in number_sets.literal_sets(numbers):
            literal = re.fullmatch(r"\(SELECT arrayJoin\(JSONExtract\('(.*)', 'Array\(UInt64\)'\)\)\)", text)
            assert literal
            some = orjson.loads(literal[1])
            assert len(some) <= 3
            found += some
    assert found == numbers


def test_the_text_of_a_statement_is_below_the_limit() -> None:
    largest = [(1 << 64) - 1] * number_sets.LITERAL_NUMBERS
    [text] = number_sets.literal_sets(largest)
    assert len(text) < 250_000
