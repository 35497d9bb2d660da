"""Decide if prompts are worth optimising: coupling of two modules, and headroom of candidates. Pure.

Source: arXiv:2604.14585, known here from accounts of the paper. Its headroom threshold alone (a gain of 2 points)
passes 91 % of cases without any headroom (scores 0/1, 100 questions, best of 20), so the gain is confirmed on held-out
questions.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import fdtrc

from stepstream.analytics import bootstrap
from stepstream.analytics.estimate import Estimate, undefined

MIN_GAIN = 0.02

Floats = npt.NDArray[np.float64]


class Coupling(NamedTuple):
    """F test of the interaction between two modules. F below 1: optimise the modules apart."""

    f: float | None
    """None: nothing varies beside the main effects."""
    p: float | None
    shares: dict[str, float]
    """Share of the sum of squares: `question`, `a`, `b`, `ab`, `residual`; empty if all scores are equal."""


def coupling(scores: npt.ArrayLike) -> Coupling:
    """Return F of the interaction of modules A and B. `scores`: (prompts of A, prompts of B, questions).

    Raises:
        ValueError: the shape has a dimension below 2.
    """
    y = np.asarray(scores, dtype=np.float64)
    if y.ndim != 3 or min(y.shape) < 2:
        raise ValueError(f"scores of shape {y.shape}: each of the three dimensions needs 2")
    a, b, n = y.shape
    mean = y.mean()
    by_a, by_b, by_q, by_ab = y.mean((1, 2)), y.mean((0, 2)), y.mean((0, 1)), y.mean(2)
    squares = {
        "question": a * b * np.sum((by_q - mean) ** 2),
        "a": b * n * np.sum((by_a - mean) ** 2),
        "b": a * n * np.sum((by_b - mean) ** 2),
        "ab": n * np.sum((by_ab - by_a[:, None] - by_b[None] + mean) ** 2),
    }
    total = float(np.sum((y - mean) ** 2))
    if total == 0:
        return Coupling(None, None, {})
    shares = {name: float(value) / total for name, value in squares.items()}
    shares["residual"] = max(0.0, 1 - sum(shares.values()))
    return Coupling(*f_test(shares["ab"], shares["residual"], a, b, n), shares)


def f_test(interaction: float, residual: float, a: int, b: int, n: int) -> tuple[float | None, float | None]:
    """Return F and p from the shares of squares, for (a−1)(b−1) and (ab−1)(n−1) degrees of freedom."""
    above, below = (a - 1) * (b - 1), (a * b - 1) * (n - 1)
    if residual <= 1e-12:
        return None, None
    f = (interaction / above) / (residual / below)
    return f, float(fdtrc(above, below, f))


class Headroom(NamedTuple):
    """Result of the headroom test. The estimate is the gain on the questions that did not choose the candidate."""

    chosen: int | None
    """Index of the candidate that was best on the first half."""
    gain: Estimate
    found: bool
    """True if the gain is at least 2 points and its lower bound above 0: an optimiser may be worth its cost."""


def headroom(candidates: npt.ArrayLike, baseline: npt.ArrayLike, *, seed: int = 0) -> Headroom:
    """Choose the best candidate on one half of the questions and measure its gain on the other by a paired bootstrap.

    `candidates`: (candidates, questions), `baseline`: (questions,), scores in [0, 1]; the halves are drawn by the seed.
    """
    tried, base = np.asarray(candidates, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    if tried.ndim != 2 or not len(tried) or base.size < 4:
        return Headroom(None, undefined("needs a candidate and 4 questions"), found=False)
    order = np.random.default_rng(seed).permutation(base.size)
    first, second = order[::2], order[1::2]
    chosen = int(np.argmax(tried[:, first].mean(axis=1)))
    gain = bootstrap.mean(tried[chosen, second] - base[second], n=second.size, seed=seed)
    found = gain.value is not None and gain.value >= MIN_GAIN and gain.low is not None and gain.low > 0
    return Headroom(chosen, gain, found=found)
