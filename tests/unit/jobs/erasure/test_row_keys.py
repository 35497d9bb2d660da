"""Conditions name each identity once, and those for fewer identities reach no further row."""

import re

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.jobs.erasure import row_keys
from stepstream.jobs.erasure.row_keys import FACTS, Key, short_conditions

STEPS = FACTS[0]
Keys = st.sets(
    st.tuples(
        st.sampled_from(["a", "b'", "c\\"]), st.integers(0, 9), st.just("t"), st.integers(0, 2), st.integers(0, 9)
    ),
    max_size=30,
)


def selected(keys: set[Key]) -> list[tuple[frozenset[str], int]]:
    """Return the tenants and a value of the short column for each value of each condition."""
    found = []
    for where in short_conditions(STEPS, keys):
        tenants, values = re.fullmatch(
            r"tenant IN \((.*)\) AND .*JSONExtract\('(.*)', 'Array\(UInt64\)'\)\)\)", where
        ).groups()  # type: ignore[union-attr]
        found += [(frozenset(tenants.split(", ")), value) for value in orjson.loads(values)]
    return found


@given(Keys, Keys)
def test_fewer_identities_reach_no_further_row(keys: set[Key], others: set[Key]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_keys, "KEYS_BYTES", 12)
        wide, narrow = selected(keys | others), selected(keys)
    assert sorted(value for _, value in wide) == sorted({key[4] for key in keys | others}), "each value once"
    by_value = {value: tenants for tenants, value in wide}
    assert all(tenants <= by_value[value] for tenants, value in narrow)
    assert len({tenants for tenants, _ in wide}) <= 1


def test_texts_are_quoted() -> None:
    [where] = short_conditions(STEPS, [("it's \\", 0, "t", 0, 5)])
    assert where.startswith("tenant IN ('it\\'s \\\\') AND ")
