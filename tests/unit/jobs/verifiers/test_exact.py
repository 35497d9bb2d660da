"""The verifier `exact`: texts and numbers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_verifiers import create, value, verdict

from stepstream.jobs.verifiers.base import UnverifiableCase
from stepstream.jobs.verifiers.exact import number


@pytest.mark.parametrize(
    ("observed", "expected", "options", "right"),
    [
        ("4", "4", {}, 1),
        (" a  b\n", "a b", {}, 1),
        ("a  b", "a b", {"spaces": True}, 0),
        ("Paris", "paris", {}, 0),
        ("Paris", "paris", {"case": False}, 1),
        ("caf\u00e9", "cafe\u0301", {}, 1),
        ("1,000.0", 1000, {"numbers": True}, 1),
        ("1,000.0", 1000, {}, 0),
        ("1e3", "1000", {"numbers": True}, 1),
        ("0.3", 0.30000000000000004, {"numbers": True}, 1),
        ("3.2", 3, {"numbers": True, "tolerance": 0.1}, 1),
        ("10,00", 1000, {"numbers": True}, 0),
        ("four", 4, {"numbers": True}, 0),
        ("b", ["a", "b"], {}, 1),
        ("c", ["a", "b"], {}, 0),
    ],
)
def test_exact(observed: str, expected: Any, options: dict[str, Any], right: int) -> None:
    assert value(create("exact", **options), observed, expected=expected) == right


@pytest.mark.parametrize("expected", [None, [], {}, True, [None], [["a"]]])
def test_exact_needs_something_to_compare_with(expected: Any) -> None:
    with pytest.raises(UnverifiableCase):
        verdict(create("exact"), "x", expected=expected)


@given(st.text())
def test_the_expected_text_is_right(text: str) -> None:
    ways: list[dict[str, Any]] = [{}, {"numbers": True}, {"case": False}, {"spaces": True}]
    for options in ways:
        assert value(create("exact", **options), text, expected=text) == 1


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_parsed_exactly(given_number: float) -> None:
    assert number(repr(given_number)) == given_number
    assert number(f"{given_number:,}") == given_number
