"""Test how attributes that senders write become numbers."""

from typing import Any

import pytest

from stepstream.services.gateway.otlp.attributes import integer


@pytest.mark.parametrize(
    ("value", "number"),
    [(7, 7), ("7", 7), ("-7", -7), (7.9, 7), ("9" * 18, 10**18 - 1), ("9" * 19, None), (2**63, None)],
)
def test_whole_numbers_are_read_within_their_bits(value: Any, number: int | None) -> None:
    assert integer(value) == number


@pytest.mark.parametrize("value", ["", "-", "--7", "-7-", "7.5", "²", "9" * 5000, None, True, [7]])
def test_a_text_that_is_no_number_is_none(value: Any) -> None:
    assert integer(value) is None
