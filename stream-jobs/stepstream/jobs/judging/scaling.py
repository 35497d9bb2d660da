"""Scale a judge's scores to probabilities, p = σ((logit(s) - b)/T), fitted by likelihood. Pure."""

import math
from collections.abc import Sequence
from typing import NamedTuple

_EDGE = 0.005
"""Scores are clipped to [edge, 1 - edge]: a score of 1 is not infinite certainty."""
_MAX_ITERATIONS = 100
_MIN_STEP = 1e-9
_RIDGE = 1e-2
"""Weight of a prior on slope 1 and bias 0; it keeps the fit finite for separable classes."""


class Scaling(NamedTuple):
    """Fitted temperature T (above 0) and bias b."""

    temperature: float
    bias: float

    def apply(self, score: float) -> float:
        """Return the probability for a score in [0, 1]."""
        return sigmoid((logit(score) - self.bias) / self.temperature)


def logit(score: float) -> float:
    """Return ln(s/(1-s)), for s clipped to the edges."""
    inside = min(max(score, _EDGE), 1 - _EDGE)
    return math.log(inside / (1 - inside))


def sigmoid(x: float) -> float:
    """Return 1/(1 + e^-x), without overflow."""
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    exponential = math.exp(x)
    return exponential / (1 + exponential)


def fit(scores: Sequence[float], outcomes: Sequence[bool]) -> Scaling | None:
    """Return the scaling of least negative log-likelihood (with a weak prior), by Newton's method on slope and
    intercept.

    None: all outcomes are equal, or higher scores mean worse outcomes, which no temperature can correct.
    """
    if len(set(outcomes)) < 2:
        return None
    points = [(logit(score), float(outcome)) for score, outcome in zip(scores, outcomes, strict=True)]
    slope, intercept = 1.0, 0.0
    loss = _loss(points, slope, intercept)
    for _ in range(_MAX_ITERATIONS):
        # p = σ(slope·x + intercept); gradient and Hessian of the loss.
        g_slope, g_intercept = _RIDGE * (slope - 1), _RIDGE * intercept
        h_ss, h_si, h_ii = _RIDGE, 0.0, _RIDGE
        for x, y in points:
            p = sigmoid(slope * x + intercept)
            curvature = p * (1 - p)
            g_slope += (p - y) * x
            g_intercept += p - y
            h_ss += curvature * x * x
            h_si += curvature * x
            h_ii += curvature
        determinant = h_ss * h_ii - h_si * h_si
        by_slope = (h_ii * g_slope - h_si * g_intercept) / determinant
        by_intercept = (h_ss * g_intercept - h_si * g_slope) / determinant
        # Newton's steps overshoot where the sigmoid is flat: halve them until the loss falls.
        scale = 1.0
        while scale > _MIN_STEP:
            tried = _loss(points, slope - scale * by_slope, intercept - scale * by_intercept)
            if tried < loss:
                break
            scale /= 2
        else:
            break
        slope, intercept, loss = slope - scale * by_slope, intercept - scale * by_intercept, tried
    if slope <= 1e-6:
        return None
    return Scaling(1 / slope, -intercept / slope)


def _loss(points: Sequence[tuple[float, float]], slope: float, intercept: float) -> float:
    """Return the negative log-likelihood with the prior: Σ ln(1 + e^z) - y·z for z = slope·x + intercept."""
    total = _RIDGE / 2 * ((slope - 1) ** 2 + intercept**2)
    for x, y in points:
        z = slope * x + intercept
        total += max(z, 0.0) + math.log1p(math.exp(-abs(z))) - y * z
    return total
