"""Compute means, scaling, returns and GAE for the rules. Sums are exact, in float64."""

import math
from collections.abc import Iterable, Sequence

EPSILON = 1e-6
"""Added to a standard deviation before dividing by it."""
WHITENING_EPSILON = 1e-8
"""Added to a variance, inside the root, where a whole batch is whitened (as verl does)."""


def total(values: Iterable[float]) -> float:
    """Return the exact sum, which does not depend on the order."""
    return math.fsum(values)


def has_variance(values: Sequence[float]) -> bool:
    """Return True if there are at least two values and they are not all equal."""
    return any(value != values[0] for value in values[1:])


def centred(values: Sequence[float]) -> list[float]:
    """Return the differences from the mean."""
    mean = total(values) / len(values)
    return [value - mean for value in values]


def standardised(values: Sequence[float], *, ddof: int = 1) -> list[float]:
    """Return (value - mean)/(standard deviation + ε); all zeros if the values are equal.

    Args:
        values: one or more.
        ddof: 1: divide the sum of squares by n - 1 (the unbiased estimate); 0: by n.
    """
    if not has_variance(values):
        return [0.0] * len(values)
    differences = centred(values)
    deviation = math.sqrt(total(difference**2 for difference in differences) / (len(values) - ddof))
    return [difference / (deviation + EPSILON) for difference in differences]


def whitened(values: Sequence[float]) -> list[float] | None:
    """Scale to zero mean and unit variance (n - 1, ε inside the root); None if fewer than two values or all equal."""
    if not has_variance(values):
        return None
    differences = centred(values)
    variance = total(difference**2 for difference in differences) / (len(values) - 1)
    scale = math.sqrt(variance + WHITENING_EPSILON)
    return [difference / scale for difference in differences]


def returns(rewards: Sequence[float], discount: float, after: float = 0.0) -> list[float]:
    """Return G_t = r_t + γ·G_{t+1}; `after` is the return after the last reward."""
    result = [0.0] * len(rewards)
    for t in reversed(range(len(rewards))):
        after = result[t] = rewards[t] + discount * after
    return result


def gae(rewards: Sequence[float], values: Sequence[float], after: float, discount: float, trace: float) -> list[float]:
    """Estimate advantages by GAE (arXiv 1506.02438): A_t = δ_t + γλ·A_{t+1}, δ_t = r_t + γ·V_{t+1} - V_t.

    Args:
        rewards: r_t.
        values: V_t, of the state before r_t.
        after: V after the last reward; 0 where the attempt ended.
        discount: γ.
        trace: λ.
    """
    result = [0.0] * len(rewards)
    following = 0.0
    for t in reversed(range(len(rewards))):
        following = result[t] = rewards[t] + discount * after - values[t] + discount * trace * following
        after = values[t]
    return result
