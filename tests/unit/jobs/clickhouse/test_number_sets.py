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
        patch.setattr(number_sets, "LITERAL_BYTES", 60)
        for text in number_sets.literal_sets(numbers):
            literal = re.fullmatch(r"\(SELECT arrayJoin\(JSONExtract\('(.*)', 'Array\(UInt64\)'\)\)\)", text)
            assert literal
            assert len(literal[1]) <= 62
            found += orjson.loads(literal[1])
    assert found == numbers
