import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.learner.advantage import Rule, advantages, has_variance

REWARDS = (1.0, 0.0, 0.5, 0.0)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("grpo", (1.305580, -0.783348, 0.261116, -0.783348)),
        ("rloo", (0.833333, -0.500000, 0.166667, -0.500000)),
        ("dr_grpo", (0.625000, -0.375000, 0.125000, -0.375000)),
    ],
)
def test_published_vectors(rule: Rule, expected: tuple[float, ...]) -> None:
    assert advantages(REWARDS, rule) == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize("rule", ["grpo", "rloo", "dr_grpo"])
@pytest.mark.parametrize("rewards", [[], [1.0], [0.3, 0.3, 0.3]])
def test_nothing_to_compare_teaches_nothing(rule: Rule, rewards: list[float]) -> None:
    assert advantages(rewards, rule) == [0.0] * len(rewards)
    assert not has_variance(rewards)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=16), st.sampled_from(["grpo", "rloo", "dr_grpo"]))
def test_advantages_sum_to_nothing_and_keep_the_order_of_rewards(rewards: list[float], rule: Rule) -> None:
    result = advantages(rewards, rule)
    assert sum(result) == pytest.approx(0.0, abs=1e-6)
    ranked = sorted(range(len(rewards)), key=rewards.__getitem__)
    assert all(result[a] <= result[b] for a, b in itertools.pairwise(ranked))
