"""Consent: of all that was said, the strictest, in whatever order."""

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.jobs.governance.consent import LEVELS, consent_key, effective, stricter, strictest

levels = st.sampled_from(LEVELS)
names = st.sampled_from(["a", "b", "*", "a/b", "ünï"])
said = st.dictionaries(
    st.builds(consent_key, names, st.none() | names, st.none() | names), levels.map(lambda level: {"consent": level})
)


@given(levels, levels, levels)
def test_the_strictest_of_some_is_a_semilattice(a: Any, b: Any, c: Any) -> None:
    assert stricter(a, b) == stricter(b, a)
    assert stricter(a, a) == a
    assert stricter(stricter(a, b), c) == stricter(a, stricter(b, c))
    assert all(stricter(*order) == stricter(a, b, c) for order in permutations((a, b, c)))


@given(said, levels, names, names, names, levels, levels)
def test_more_said_never_allows_more(
    before: dict[str, Any], more: Any, tenant: str, user: str, agent: str, default: Any, told: Any
) -> None:
    known = strictest(before, tenant, user, agent)
    for key in (consent_key(tenant, None, None), consent_key(tenant, user, None), consent_key("b", "a", "*")):
        if key in before:
            continue
        after = strictest(before | {key: {"consent": more}}, tenant, user, agent)
        assert known is None or after is not None
        assert known is None or LEVELS.index(after) <= LEVELS.index(known)
    result = effective(told, before, tenant=tenant, user=user, agent=agent, default=default)
    assert LEVELS.index(result) <= LEVELS.index(told)
    assert result == effective(result, before, tenant=tenant, user=user, agent=agent, default=default)


def test_what_was_said_applies_to_whom_it_names() -> None:
    table = {
        consent_key("t", None, None): {"consent": "train"},
        consent_key("t", "ada", None): {"consent": "analyse"},
        consent_key("t", None, "coder"): {"consent": "analyse"},
        consent_key("t", "ada", "coder"): {"consent": "none"},
    }
    assert strictest(table, "t", "bob", "writer") == "train"
    assert strictest(table, "t", "ada", "writer") == "analyse"
    assert strictest(table, "t", None, "coder") == "analyse"
    assert strictest(table, "t", "ada", "coder") == "none"
    assert strictest(table, "u", "ada", "coder") is None
    # Feedback tells no agent: what was said about its person with one agent does not apply.
    assert strictest(table, "t", "ada", None) == "analyse"


def test_the_policy_speaks_where_nobody_did_and_sets_the_most() -> None:
    table = {consent_key("t", "ada", None): {"consent": "train"}}
    about: dict[str, Any] = {"tenant": "t", "agent": "a"}
    assert effective("train", table, user="ada", default="none", **about) == "train"
    assert effective("train", table, user="bob", default="none", **about) == "none"
    assert effective("train", table, user="ada", maximum="analyse", **about) == "analyse"
    assert effective("none", table, user="ada", **about) == "none"


@pytest.mark.parametrize("name", ["*", "a/b", "a%2Fb", ""])
def test_a_name_is_never_taken_for_another(name: str) -> None:
    others = [None, "x", "a", "%2A", "a%2Fb" if name != "a%2Fb" else "a/b"]
    assert consent_key("t", name, None) not in {consent_key("t", other, None) for other in others}
