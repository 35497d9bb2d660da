"""Scores scaled to probabilities."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from stepstream.jobs.judging.scaling import Scaling, fit, logit, sigmoid


@given(st.floats(0.3, 4), st.floats(-2, 2), st.integers(0, 100))
def test_a_distorted_score_is_corrected(temperature: float, bias: float, seed: int) -> None:
    drawn = random.Random(seed)
    wanted = [drawn.uniform(0.02, 0.98) for _ in range(400)]
    outcomes = [drawn.random() < p for p in wanted]
    scores = [sigmoid(temperature * logit(p) + bias) for p in wanted]
    scaling = fit(scores, outcomes)
    assert scaling is not None
    before, after = ([f(s) for s in scores] for f in (lambda s: s, scaling.apply))
    assert negative_log_likelihood(after, outcomes) <= negative_log_likelihood(before, outcomes) + 1e-3


def negative_log_likelihood(probabilities: list[float], outcomes: list[bool]) -> float:
    inside = [min(max(p, 1e-12), 1 - 1e-12) for p in probabilities]
    return -sum(math.log(p if y else 1 - p) for p, y in zip(inside, outcomes, strict=True)) / len(outcomes)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.1, 5), st.floats(-3, 3))
def test_scaling_keeps_the_order(left: float, right: float, temperature: float, bias: float) -> None:
    scaling = Scaling(temperature, bias)
    if left <= right:
        assert scaling.apply(left) <= scaling.apply(right)


def test_uninformative_or_inverted_scores_have_no_scaling() -> None:
    assert fit([0.9, 0.1], [True, True]) is None
    assert fit([0.9] * 20 + [0.1] * 20, [False] * 20 + [True] * 20) is None
