"""Conditions name each identity once, and those for fewer identities reach no further row."""

import re

from hypothesis import given
from hypothesis import strategies as st

from stepstream.jobs.erasure.row_keys import FACTS, Key, short_condition

STEPS, TRAJECTORIES = FACTS[0], FACTS[-1]
Keys = st.sets(
    st.tuples(
        st.sampled_from(["a", "b'", "c\\"]), st.integers(0, 9), st.just("t"), st.integers(0, 2), st.integers(0, 9)
    ),
    max_size=30,
)


def of(keys: set[Key]) -> str:
    return short_condition(STEPS, {key[0] for key in keys}, "s")


def tenants_of(keys: set[Key]) -> set[str]:
    """Return the tenants of the condition for identities, as literals."""
    condition = re.fullmatch(r"tenant IN \((.*)\) AND source_key IN s", text := of(keys))
    assert condition, text
    return set(filter(None, condition[1].split(", ")))


@given(Keys, Keys)
def test_fewer_identities_reach_no_further_row(keys: set[Key], others: set[Key]) -> None:
    assert tenants_of(keys) <= tenants_of(keys | others)


def test_texts_are_quoted() -> None:
    assert short_condition(STEPS, ["it's \\"], "s").startswith("tenant IN ('it\\'s \\\\') AND ")


def test_labels_are_selected_by_one_number_of_their_times() -> None:
    assert short_condition(TRAJECTORIES, ["a"], "s") == "tenant IN ('a') AND cityHash64(opened_at, ended_at) IN s"


def test_rows_of_any_tenant_are_selected_by_the_number_alone() -> None:
    assert short_condition(STEPS, None, "s") == "source_key IN s"
