"""A response's restriction is the first that applies, in the documented order; temperature alone is none."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.topics.events import new_sampling
from stepstream.topics.sampling_restrictions import RESTRICTIONS, restriction_of

CASES: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 0.0}, "greedy"),
    ({"temperature": 0.009}, "greedy"),
    ({"temperature": float("nan")}, "greedy"),
    ({"top_p": 0.99}, "truncated"),
    ({"top_k": 1}, "truncated"),
    ({"min_p": 0.01}, "truncated"),
    ({"presence_penalty": -0.1}, "penalised"),
    ({"frequency_penalty": 0.1}, "penalised"),
    ({"repetition_penalty": 1.1}, "penalised"),
    ({"logit_bias": True}, "biased"),
    ({"constraint": "regex"}, "grammar"),
]


@pytest.mark.parametrize(("fields", "expected"), CASES)
def test_each_parameter_restricts(fields: dict[str, Any], expected: str) -> None:
    assert restriction_of(new_sampling(**fields)) == expected


@given(st.floats(0.01, 2.0), st.none() | st.integers(0, 9), st.none() | st.integers(0, 9))
def test_temperature_limit_and_seed_restrict_nothing(temperature: float, limit: int | None, seed: int | None) -> None:
    assert restriction_of(new_sampling(temperature=temperature, max_tokens=limit, seed=seed)) == ""


@given(st.lists(st.sampled_from(CASES), min_size=1))
def test_the_first_restriction_in_order_is_recorded(cases: list[tuple[dict[str, Any], str]]) -> None:
    fields = {name: value for each, _ in cases for name, value in each.items()}
    found = {name for _, name in cases}
    assert restriction_of(new_sampling(**fields)) == next(name for name in RESTRICTIONS if name in found)
