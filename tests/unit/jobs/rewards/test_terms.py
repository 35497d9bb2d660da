"""Terms of a reward by step, shaping, returns and success."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_cases import NUMBERS, SPEC, discounted, rewards_of, signal, spec, terms_of, terms_with
from stream_records import make_steps

from stepstream.jobs.rewards.counted_feedback import newest
from stepstream.jobs.rewards.spec import RewardSpec
from stepstream.jobs.rewards.terms import returns_to_go, reward_of, shaping_rewards, success
from stepstream.topics.events import new_message, new_tool_call


def test_components_are_laid_over_the_steps(tmp_path: Path) -> None:
    steps = make_steps("t", 3)
    failed = new_tool_call(call_id="1", name="get", arguments="{}", error="Timeout")
    steps[1]["response"] = new_message(role="assistant", tool_calls=[failed, failed])
    signals = [
        signal("outcome", 5.0),
        signal("thumbs", -3.0, step=0),
        signal("thumbs", 1.0, step=7),
        signal("other", 1.0),
    ]
    terms = terms_of(spec(tmp_path, SPEC), steps, signals)
    values = [{term["name"]: term["value"] for term in step} for step in terms]
    assert values == [
        {"thumbs": -1.0, "tool_errors": 0.0},
        {"tool_errors": 1.0},
        {"outcome": 2.0, "tool_errors": 0.0, "slow": pytest.approx(0.0375)},
    ]
    assert [reward_of(step) for step in terms] == pytest.approx([-0.5, -1.0, 2.0 - 0.00375])
    assert terms[0][0]["feedback_event_id"] == "f"
    assert terms[1][0]["source"] == "environment"


def test_success_is_the_outcome_at_its_upper_bound(tmp_path: Path) -> None:
    declared = spec(tmp_path, SPEC)
    steps = make_steps("t", 1)
    assert success(declared, terms_of(declared, steps, [])) is None
    assert success(declared, terms_of(declared, steps, [signal("outcome", 1.9)])) is False
    assert success(declared, terms_of(declared, steps, [signal("outcome", 2.0)])) is True
    # Feedback about one step says nothing about the whole.
    assert success(declared, terms_of(declared, steps, [signal("outcome", 2.0, step=0)])) is None


def test_the_newest_signal_counts() -> None:
    assert newest([]) is None
    old, new = signal("o", 0.0, at=1, number="b"), signal("o", 1.0, at=2, number="a")
    assert newest([new, old]) is new
    assert newest([signal("o", 0.0, at=2, number="z"), new]) != new


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.floats(0, 1))
def test_returns_are_the_discounted_sums_ahead(rewards: list[float], gamma: float) -> None:
    returns = returns_to_go(rewards, gamma)
    for place in range(len(rewards)):
        ahead = sum(gamma**k * reward for k, reward in enumerate(rewards[place:]))
        assert returns[place] == pytest.approx(ahead, abs=1e-9)


GAMMAS = st.floats(0, 1)


def shaped(gamma: float, weight: float = 1.0) -> RewardSpec:
    component = {"name": "phi", "feedback": "phi", "level": "step", "potential": True, "weight": weight}
    outcome = {"name": "outcome", "feedback": "outcome", "outcome": True}
    return RewardSpec.model_validate({"gamma": gamma, "component": [outcome, component | {"bounds": (-5, 5)}]})


def test_the_published_vector() -> None:
    """CREDIT.md, section G: the potentials 0.2, 0.5, 0.4, 0 give -0.2 at any discount."""
    for gamma in (1.0, 0.9, 0.5):
        steps = shaping_rewards([0.2, 0.5, 0.4, 0.0], gamma)
        assert math.fsum(gamma**t * value for t, value in enumerate(steps)) == pytest.approx(-0.2)
    assert shaping_rewards([0.2, 0.5, 0.4, 0.0], 1.0) == pytest.approx([0.3, -0.1, -0.4, 0.0])


@given(st.lists(NUMBERS, min_size=1, max_size=8), GAMMAS, NUMBERS, st.floats(0, 1))
def test_shaping_adds_a_constant_to_every_path_from_a_state(
    potentials: list[float], gamma: float, weight: float, outcome: float
) -> None:
    """Σ γ^t·F_t = -Φ(s_1): so the returns of paths from one state differ as they did without shaping."""
    terms = terms_with(shaped(gamma, weight), {"phi": potentials}, outcome)
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
    laid_out = [terms_with(spec, {"phi": [start, *path[1:]]}, one) for path, one in zip(paths, outcomes, strict=False)]
    plain = [discounted(rewards_of(terms, shaping=False), gamma) for terms in laid_out]
    shaped_returns = [discounted(rewards_of(terms), gamma) for terms in laid_out]
    for first in range(len(paths)):
        for second in range(len(paths)):
            if plain[first] > plain[second] + 1e-6:
                assert shaped_returns[first] > shaped_returns[second]


def test_an_unknown_potential_is_that_of_the_previous_step() -> None:
    spec = shaped(1.0)
    steps = make_steps("t", 3)
    signals = [signal("phi", 0.5, "phi/1", step=1)]
    terms = terms_of(spec, steps, signals)
    assert [term["value"] for step in terms for term in step] == [0.5, 0.0, -0.5]
    assert [term["feedback_event_id"] for step in terms for term in step] == [None, "phi/1", None]
    assert terms_of(spec, steps, []) == [[], [], []]
