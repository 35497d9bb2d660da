"""Test that the calculator agrees with Python on its grammar and rejects everything else."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.fleet.arithmetic import MAX_LENGTH, ArithmeticSyntaxError, calculate

EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map("".join),
        inner.map("({})".format),
        inner.map("-{}".format),
    ),
    max_leaves=12,
).filter(lambda text: len(text) <= MAX_LENGTH)


@given(EXPRESSIONS)
def test_results_equal_pythons(text: str) -> None:
    assert calculate(text) == eval(text)


@given(st.text(alphabet="0123456789+-*()ab. _", max_size=80))
def test_any_text_gives_a_number_or_a_syntax_error(text: str) -> None:
    with suppress(ArithmeticSyntaxError):
        assert isinstance(calculate(text), int)


@pytest.mark.parametrize(
    "text", ["", "1+", "+1", "(1", "1)", "1 + 2", "2**3", "1/2", "abs(1)", "0x10", "()", "٣", "1" * 65]
)
def test_text_outside_the_grammar_is_rejected(text: str) -> None:
    with pytest.raises(ArithmeticSyntaxError):
        calculate(text)


@pytest.mark.parametrize("text", ["(" * MAX_LENGTH, "-" * MAX_LENGTH, "9*" * 31 + "9", "007"])
def test_deep_and_long_texts_raise_no_other_error(text: str) -> None:
    with suppress(ArithmeticSyntaxError):
        calculate(text)
