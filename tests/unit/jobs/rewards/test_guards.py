"""Caps and guards: bounds of components, of the whole reward, and of malformed calls."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_cases import NUMBERS, discounted, rewards_of, terms_with

from stepstream.jobs.rewards.spec import RewardSpec
from stepstream.jobs.rewards.terms import returns_to_go

POSITIVE_GAMMAS = st.one_of(st.sampled_from([1.0, 0.95, 0.5]), st.floats(0.01, 1))


@st.composite
def guarded(draw: st.DrawFn) -> tuple[RewardSpec, list[str]]:
    """A specification of any components, some by step, under the guard against malformed calls."""
    low = draw(st.floats(-3, 1))
    parts: list[dict[str, Any]] = [{"name": "outcome", "feedback": "outcome", "outcome": True, "weight": draw(NUMBERS)}]
    names = [f"c{number}" for number in range(draw(st.integers(0, 3)))]
    for name in names:
        part = {"name": name, "feedback": name, "level": "step", "weight": draw(NUMBERS), "bounds": (-4.0, 4.0)}
        capped = draw(st.booleans())
        parts.append(part | ({"trajectory_bounds": (-1.0, 2.0)} if capped else {}) | {"shadow": draw(st.booleans())})
    document = {"reward_bounds": (low, low + draw(st.floats(0.1, 3))), "cap_malformed": True, "component": parts}
    return RewardSpec.model_validate(document), names


@given(guarded(), st.data())
def test_a_malformed_call_never_scores_above_an_honest_failure(
    declared: tuple[RewardSpec, list[str]], data: st.DataObject
) -> None:
    """For all values of the components, and even if the outcome is wrong."""
    spec, names = declared
    values = st.fixed_dictionaries({name: st.lists(NUMBERS, min_size=1, max_size=4) for name in names})
    honest = terms_with(spec, data.draw(values), 0.0)
    broken = terms_with(spec, data.draw(values), data.draw(st.floats(0, 1)), broken=[-1])
    assert sum(rewards_of(broken)) <= sum(rewards_of(honest)) + 1e-9
    assert spec.reward_bounds is not None
    low, high = spec.reward_bounds
    assert low - 1e-9 <= sum(rewards_of(honest)) <= high + 1e-9
    assert all(term["weight"] == 0 for step in honest for term in step if term["kind"] == "shadow")


@given(guarded(), POSITIVE_GAMMAS, st.data())
def test_a_malformed_call_never_scores_above_an_honest_failure_at_any_discount_from_any_step(
    declared: tuple[RewardSpec, list[str]], gamma: float, data: st.DataObject
) -> None:
    """Not above a failure of the same length that lost as much before and is paid the lower bound at its end."""
    spec, names = declared
    values = st.fixed_dictionaries({name: st.lists(NUMBERS, min_size=1, max_size=5) for name in names})
    drawn = data.draw(values)
    places = st.sets(st.integers(0, max([1, *map(len, drawn.values())]) - 1), min_size=1)
    broken = rewards_of(terms_with(spec, drawn, data.draw(st.floats(0, 1)), data.draw(places)))
    assert spec.reward_bounds is not None
    low, high = spec.reward_bounds
    last = len(broken) - 1
    for place, gain in enumerate(returns_to_go(broken, gamma)):
        assert gain <= min(0.0, gamma ** (last - place) * (low - sum(broken[:place]))) + 1e-9
    failure = rewards_of(terms_with(spec, {}, 0.0, count=len(broken)))
    assert discounted(broken, gamma) <= discounted(failure, gamma) + 1e-9
    # Bounds of honest trajectories hold at any discount too.
    honest = rewards_of(terms_with(spec, data.draw(values), 0.0))
    assert min(low, 0.0) - 1e-9 <= discounted(honest, gamma) <= max(high, 0.0) + 1e-9


def bounded(low: float, high: float) -> RewardSpec:
    part = {"name": "c", "feedback": "c", "level": "step", "bounds": (-5, 5)}
    return RewardSpec.model_validate({"reward_bounds": (low, high), "cap_malformed": True, "component": [part]})


def test_rewards_of_a_malformed_trajectory_are_removed_at_their_steps_and_the_rest_at_the_last_malformed_call() -> None:
    """Booked at the end, five steps with a malformed first one that was paid 1 would be worth 1 - 0.95^4 at 0.95."""
    paid = {"c": [1.0, 0.0, 0.0, 0.0, 0.0]}
    assert rewards_of(terms_with(bounded(0.0, 1.0), paid, 0.0, [0])) == [0.0] * 5
    paid = {"c": [1.0, 0.5, -0.25, 2.0]}
    assert rewards_of(terms_with(bounded(-1.0, 1.0), paid, 0.0, [0, 1])) == [0.0, -0.75, -0.25, 0.0]
    assert rewards_of(terms_with(bounded(-1.0, 1.0), {"c": [-3.0, 4.0]}, 0.0, [1])) == [-3.0, 0.0]
    terms = terms_with(bounded(-1.0, 1.0), {"c": [0.0, 0.0]}, 0.0, [0])
    assert [[term["name"] for term in step] for step in terms] == [["c", "cap:malformed"], ["c"]]


def test_the_whole_reward_is_corrected_at_the_step_that_passes_its_bounds() -> None:
    paid = {"c": [0.75, 0.75, 0.75, -2.0]}
    assert rewards_of(terms_with(bounded(-1.0, 1.0), paid, 0.0)) == [0.75, 0.25, 0.0, -0.75]
    assert rewards_of(terms_with(bounded(0.5, 1.0), {"c": [0.0, 0.0]}, 0.0)) == [0.0, 0.5]
    assert rewards_of(terms_with(bounded(-1.0, -0.5), {"c": [0.0, 0.0]}, 0.0)) == [0.0, -0.5]


@given(st.lists(NUMBERS, min_size=1, max_size=8))
def test_a_component_pays_no_more_than_its_bounds_over_the_steps(values: list[float]) -> None:
    part = {"name": "c", "feedback": "c", "level": "step", "weight": 2.0, "bounds": (-5, 5)}
    spec = RewardSpec.model_validate({"component": [part | {"trajectory_bounds": (-1.0, 2.0)}]})
    terms = terms_with(spec, {"c": values}, 0.0)
    assert [term["value"] for step in terms for term in step if term["name"] == "c"] == values
    paid = 0.0
    for reward in rewards_of(terms):
        paid += reward
        assert -2.0 - 1e-9 <= paid <= 4.0 + 1e-9
    assert paid == pytest.approx(2 * min(max(-1.0, math.fsum(values)), 2.0))
