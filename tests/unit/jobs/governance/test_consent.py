"""The strictest of all decisions that apply counts, in any order."""

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.jobs.governance.consent import LEVELS, consent_key, effective_consent, strictest_consent, strictest_of

levels = st.sampled_from(LEVELS)
names = st.sampled_from(["a", "b", "*", "a/b", "ünï"])
decisions = st.dictionaries(
    st.builds(consent_key, names, st.none() | names, st.none() | names), levels.map(lambda level: {"consent": level})
)


@given(levels, levels, levels)
def test_strictest_of_is_commutative_idempotent_and_associative(a: Any, b: Any, c: Any) -> None:
    assert strictest_of(a, b) == strictest_of(b, a)
    assert strictest_of(a, a) == a
    assert strictest_of(strictest_of(a, b), c) == strictest_of(a, strictest_of(b, c))
    assert all(strictest_of(*order) == strictest_of(a, b, c) for order in permutations((a, b, c)))


@given(decisions, levels, names, names, names, levels, levels)
def test_another_decision_never_allows_more(
    before: dict[str, Any], more: Any, tenant: str, user: str, agent: str, default: Any, given_consent: Any
) -> None:
    known = strictest_consent(before, tenant, user, agent)
    for key in (consent_key(tenant, None, None), consent_key(tenant, user, None), consent_key("b", "a", "*")):
        if key in before:
            continue
        after = strictest_consent(before | {key: {"consent": more}}, tenant, user, agent)
        assert known is None or after is not None
        assert known is None or LEVELS.index(after) <= LEVELS.index(known)
    result = effective_consent(given_consent, before, tenant=tenant, user=user, agent=agent, default=default)
    assert LEVELS.index(result) <= LEVELS.index(given_consent)
    assert result == effective_consent(result, before, tenant=tenant, user=user, agent=agent, default=default)


def test_a_decision_applies_to_the_tenant_person_and_agent_that_it_names() -> None:
    table = {
        consent_key("t", None, None): {"consent": "train"},
        consent_key("t", "ada", None): {"consent": "analyse"},
        consent_key("t", None, "coder"): {"consent": "analyse"},
        consent_key("t", "ada", "coder"): {"consent": "none"},
    }
    assert strictest_consent(table, "t", "bob", "writer") == "train"
    assert strictest_consent(table, "t", "ada", "writer") == "analyse"
    assert strictest_consent(table, "t", None, "coder") == "analyse"
    assert strictest_consent(table, "t", "ada", "coder") == "none"
    assert strictest_consent(table, "u", "ada", "coder") is None
    # Feedback names no agent: a decision about its person with one agent does not apply.
    assert strictest_consent(table, "t", "ada", None) == "analyse"


def test_the_policy_sets_the_default_and_the_maximum() -> None:
    table = {consent_key("t", "ada", None): {"consent": "train"}}
    about: dict[str, Any] = {"tenant": "t", "agent": "a"}
    assert effective_consent("train", table, user="ada", default="none", **about) == "train"
    assert effective_consent("train", table, user="bob", default="none", **about) == "none"
    assert effective_consent("train", table, user="ada", maximum="analyse", **about) == "analyse"
    assert effective_consent("none", table, user="ada", **about) == "none"


@pytest.mark.parametrize("name", ["*", "a/b", "a%2Fb", ""])
def test_two_names_never_have_the_same_key(name: str) -> None:
    others = [None, "x", "a", "%2A", "a%2Fb" if name != "a%2Fb" else "a/b"]
    assert consent_key("t", name, None) not in {consent_key("t", other, None) for other in others}
