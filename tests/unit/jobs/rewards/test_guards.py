"""Laws of the reward: shaping leaves the order of returns, broken calls never pay, caps hold, terms add up.

What a guard promises holds for the sum and for returns at any discount, since step rules learn from these.
"""

import math
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_records import make_steps

from stepstream.jobs.rewards.counted_feedback import count_feedback
from stepstream.jobs.rewards.spec import RewardSpec
from stepstream.jobs.rewards.terms import Terms, components, returns_to_go, reward_of, shaping_rewards
from stepstream.topics.events import new_message, new_tool_call

NUMBERS = st.floats(-5, 5)
GAMMAS = st.floats(0, 1)
POSITIVE_GAMMAS = st.one_of(st.sampled_from([1.0, 0.95, 0.5]), st.floats(0.01, 1))


def given_signal(name: str, value: float, step: int | None, source: str = "environment") -> dict[str, Any]:
    number = f"{name}/{step}"
    who = {"id": number, "source_id": number, "source": source, "consent": "train", "retracts": None}
    return {"name": name, "value": value, "step": step, "at": 0, "arrived": 0, **who}


def laid(
    spec: RewardSpec, values: dict[str, list[float]], outcome: float, broken: Collection[int] = (), count: int = 1
) -> Terms:
    """Terms of a trajectory whose components have these values at its steps, at least `count`; some call malformed."""
    steps = make_steps("t", max([count, *map(len, values.values())]))
    for place in broken:
        call = new_tool_call(call_id="c", name="get", arguments='{"input": ')
        steps[place]["response"] = new_message(role="assistant", tool_calls=[call])
    signals = [given_signal(name, value, index) for name, of in values.items() for index, value in enumerate(of)]
    signals.append(given_signal("outcome", outcome, None))
    return components(spec, steps, count_feedback(spec, signals, 0), complete=True)


def rewards_of(terms: Terms, *, shaping: bool = True) -> list[float]:
    return [reward_of(term for term in step if shaping or term["kind"] != "shaping") for step in terms]


def discounted(rewards: list[float], gamma: float) -> float:
    return returns_to_go(rewards, gamma)[0]


def shaped(gamma: float, weight: float = 1.0) -> RewardSpec:
    component = {"name": "phi", "feedback": "phi", "level": "step", "potential": True, "weight": weight}
    outcome = {"name": "outcome", "feedback": "outcome", "outcome": True}
    return RewardSpec.model_validate({"gamma": gamma, "component": [outcome, component | {"bounds": (-5, 5)}]})


def test_the_published_vector() -> None:
    """CREDIT.md, section G: the potentials 0.2, 0.5, 0.4, 0 give -0.2, whatever the discount."""
    for gamma in (1.0, 0.9, 0.5):
        steps = shaping_rewards([0.2, 0.5, 0.4, 0.0], gamma)
        assert math.fsum(gamma**t * value for t, value in enumerate(steps)) == pytest.approx(-0.2)
    assert shaping_rewards([0.2, 0.5, 0.4, 0.0], 1.0) == pytest.approx([0.3, -0.1, -0.4, 0.0])


@given(st.lists(NUMBERS, min_size=1, max_size=8), GAMMAS, NUMBERS, st.floats(0, 1))
def test_shaping_adds_the_same_to_every_path_from_a_state(
    potentials: list[float], gamma: float, weight: float, outcome: float
) -> None:
    """Σ γ^t·F_t = -Φ(s_1): so the returns of paths from one state differ as they did without shaping."""
    terms = laid(shaped(gamma, weight), {"phi": potentials}, outcome)
    with_it, without = rewards_of(terms), rewards_of(terms, shaping=False)
    added = discounted(with_it, gamma) - discounted(without, gamma)
    assert added == pytest.approx(-weight * potentials[0], abs=1e-9)
    kinds = {term["name"]: term["kind"] for step in terms for term in step}
    assert kinds == {"phi": "shaping", "outcome": "term"}
    assert [term["raw_value"] for step in terms for term in step if term["name"] == "phi"] == potentials


@given(
    st.lists(st.lists(NUMBERS, min_size=1, max_size=5), min_size=2, max_size=6),
    st.lists(st.floats(0, 1), min_size=6, max_size=6),
    GAMMAS,
)
def test_shaping_keeps_the_order_of_trajectories(paths: list[list[float]], outcomes: list[float], gamma: float) -> None:
    spec = shaped(gamma)
    start = paths[0][0]
    laid_out = [laid(spec, {"phi": [start, *path[1:]]}, one) for path, one in zip(paths, outcomes, strict=False)]
    plain = [discounted(rewards_of(terms, shaping=False), gamma) for terms in laid_out]
    shaped_returns = [discounted(rewards_of(terms), gamma) for terms in laid_out]
    for first in range(len(paths)):
        for second in range(len(paths)):
            if plain[first] > plain[second] + 1e-6:
                assert shaped_returns[first] > shaped_returns[second]


def test_a_potential_that_is_not_known_is_that_of_the_step_before() -> None:
    spec = shaped(1.0)
    steps = make_steps("t", 3)
    signals = [given_signal("phi", 0.5, 1)]
    terms = components(spec, steps, count_feedback(spec, signals, 0), complete=True)
    assert [term["value"] for step in terms for term in step] == [0.5, 0.0, -0.5]
    assert [term["feedback_event_id"] for step in terms for term in step] == [None, "phi/1", None]
    assert components(spec, steps, count_feedback(spec, [], 0), complete=True) == [[], [], []]


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
    """Whatever the components say of the one and of the other, and even where the outcome is fooled."""
    spec, names = declared
    values = st.fixed_dictionaries({name: st.lists(NUMBERS, min_size=1, max_size=4) for name in names})
    honest = laid(spec, data.draw(values), 0.0)
    broken = laid(spec, data.draw(values), data.draw(st.floats(0, 1)), broken=[-1])
    assert sum(rewards_of(broken)) <= sum(rewards_of(honest)) + 1e-9
    assert spec.reward_bounds is not None
    low, high = spec.reward_bounds
    assert low - 1e-9 <= sum(rewards_of(honest)) <= high + 1e-9
    assert all(term["weight"] == 0 for step in honest for term in step if term["kind"] == "shadow")


@given(guarded(), POSITIVE_GAMMAS, st.data())
def test_nor_does_it_at_any_discount_from_any_step_on(
    declared: tuple[RewardSpec, list[str]], gamma: float, data: st.DataObject
) -> None:
    """Not above a failure of the same length that lost as much before and is paid the lower bound at its end."""
    spec, names = declared
    values = st.fixed_dictionaries({name: st.lists(NUMBERS, min_size=1, max_size=5) for name in names})
    drawn = data.draw(values)
    places = st.sets(st.integers(0, max([1, *map(len, drawn.values())]) - 1), min_size=1)
    broken = rewards_of(laid(spec, drawn, data.draw(st.floats(0, 1)), data.draw(places)))
    assert spec.reward_bounds is not None
    low, high = spec.reward_bounds
    last = len(broken) - 1
    for place, gain in enumerate(returns_to_go(broken, gamma)):
        assert gain <= min(0.0, gamma ** (last - place) * (low - sum(broken[:place]))) + 1e-9
    failure = rewards_of(laid(spec, {}, 0.0, count=len(broken)))
    assert discounted(broken, gamma) <= discounted(failure, gamma) + 1e-9
    # What bounds honest trajectories bounds them at any discount too.
    honest = rewards_of(laid(spec, data.draw(values), 0.0))
    assert min(low, 0.0) - 1e-9 <= discounted(honest, gamma) <= max(high, 0.0) + 1e-9


def bounded(low: float, high: float) -> RewardSpec:
    part = {"name": "c", "feedback": "c", "level": "step", "bounds": (-5, 5)}
    return RewardSpec.model_validate({"reward_bounds": (low, high), "cap_malformed": True, "component": [part]})


def test_what_a_step_was_paid_is_taken_back_there_and_the_rest_where_the_call_was_malformed() -> None:
    """Booked at the end, five steps with a malformed first one that was paid 1 would be worth 1 - 0.95^4 at 0.95."""
    paid = {"c": [1.0, 0.0, 0.0, 0.0, 0.0]}
    assert rewards_of(laid(bounded(0.0, 1.0), paid, 0.0, [0])) == [0.0] * 5
    paid = {"c": [1.0, 0.5, -0.25, 2.0]}
    assert rewards_of(laid(bounded(-1.0, 1.0), paid, 0.0, [0, 1])) == [0.0, -0.75, -0.25, 0.0]
    assert rewards_of(laid(bounded(-1.0, 1.0), {"c": [-3.0, 4.0]}, 0.0, [1])) == [-3.0, 0.0]
    terms = laid(bounded(-1.0, 1.0), {"c": [0.0, 0.0]}, 0.0, [0])
    assert [[term["name"] for term in step] for step in terms] == [["c", "cap:malformed"], ["c"]]


def test_the_bounds_of_the_whole_reward_hold_where_they_are_passed() -> None:
    paid = {"c": [0.75, 0.75, 0.75, -2.0]}
    assert rewards_of(laid(bounded(-1.0, 1.0), paid, 0.0)) == [0.75, 0.25, 0.0, -0.75]
    assert rewards_of(laid(bounded(0.5, 1.0), {"c": [0.0, 0.0]}, 0.0)) == [0.0, 0.5]
    assert rewards_of(laid(bounded(-1.0, -0.5), {"c": [0.0, 0.0]}, 0.0)) == [0.0, -0.5]


@given(st.lists(NUMBERS, min_size=1, max_size=8))
def test_a_component_pays_no_more_than_its_bounds_over_the_steps(values: list[float]) -> None:
    part = {"name": "c", "feedback": "c", "level": "step", "weight": 2.0, "bounds": (-5, 5)}
    spec = RewardSpec.model_validate({"component": [part | {"trajectory_bounds": (-1.0, 2.0)}]})
    terms = laid(spec, {"c": values}, 0.0)
    assert [term["value"] for step in terms for term in step if term["name"] == "c"] == values
    paid = 0.0
    for reward in rewards_of(terms):
        paid += reward
        assert -2.0 - 1e-9 <= paid <= 4.0 + 1e-9
    assert paid == pytest.approx(2 * min(max(-1.0, math.fsum(values)), 2.0))
