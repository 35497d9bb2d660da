"""Conditions name each identity once, and those for fewer identities reach no further row."""

import re

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.jobs.erasure import row_keys
from stepstream.jobs.erasure.row_keys import FACTS, Key, StoredKey, literal_sources, short_condition, short_keys

STEPS, TRAJECTORIES = FACTS[0], FACTS[-1]
Keys = st.sets(
    st.tuples(
        st.sampled_from(["a", "b'", "c\\"]), st.integers(0, 9), st.just("t"), st.integers(0, 2), st.integers(0, 9)
    ),
    max_size=30,
)


def tenants_of(keys: set[Key]) -> set[str]:
    """Return the tenants of the condition for identities, as literals."""
    condition = re.fullmatch(r"tenant IN \((.*)\) AND source_key IN \(SELECT number FROM s\)", text := of(keys))
    assert condition, text
    return set(filter(None, condition[1].split(", ")))


def of(keys: set[Key]) -> str:
    return short_condition(STEPS, keys, "s")


@given(Keys, Keys)
def test_fewer_identities_reach_no_further_row(keys: set[Key], others: set[Key]) -> None:
    assert tenants_of(keys) <= tenants_of(keys | others)


def test_texts_are_quoted() -> None:
    assert short_condition(STEPS, [("it's \\", 0, "t", 0, 5)], "s").startswith("tenant IN ('it\\'s \\\\') AND ")


def test_labels_are_selected_by_one_number_of_their_times() -> None:
    assert short_keys([8, 5, 8]) == [("", 8, ""), ("", 5, "")], "each once, in their order"
    condition = short_condition(TRAJECTORIES, [("a", 5, "t")], "s")
    assert condition == "tenant IN ('a') AND cityHash64(opened_at, ended_at) IN (SELECT number FROM s)"


@given(st.lists(st.tuples(st.text(max_size=2), st.integers(0, 1 << 64), st.text(max_size=2))))
def test_literals_have_every_key_once_and_a_limited_size(keys: list[StoredKey]) -> None:
    keys = [(tenant, number % (1 << 64), name) for tenant, number, name in keys]
    found: list[StoredKey] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_keys, "KEYS_BYTES", 60)
        for source in literal_sources(keys):
            literal = re.search(r"JSONExtract\('(.*)', 'Array", source, re.DOTALL)
            assert literal
            chunk = orjson.loads(re.sub(r"\\(.)", r"\1", literal[1], flags=re.DOTALL))
            assert len(chunk) == 1 or len(literal[1]) < 120
            found += [(tenant, number, name) for tenant, number, name in chunk]
    assert found == keys
