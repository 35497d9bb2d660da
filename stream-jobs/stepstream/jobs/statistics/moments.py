"""Compute moments of a series over trajectories whose attempts at one task are correlated, and compare two series.
Pure.

The mean is over trajectories; its standard error is over groups. With N trajectories in G groups, n_g of them with
total S_g in group g, and mean m = ΣS_g / N, the cluster-robust variance of a mean (Liang and Zeger 1986; for a ratio of
sums: Cochran, Sampling Techniques, 1977, eq. 11.9)

    Var(m) = G / (G − 1) · Σ_g (S_g − n_g m)² / N² = G / (G − 1) · (ΣS_g² − 2m Σn_g S_g + m² Σn_g²) / N²

needs only sums, so periods and partitions add up in any order.
"""

import math
from dataclasses import dataclass
from typing import Self

_TINY = 1e-300
_TERMS = 300
_PRECISION = 1e-14


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums over trajectories. Integers add up exactly, floats approximately."""

    trajectories: int = 0
    groups: int = 0
    total: float = 0
    squares: float = 0
    """Sum of squared values."""
    group_squares: float = 0
    """ΣS_g²."""
    group_cross: float = 0
    """Σn_g S_g."""
    group_sizes: float = 0
    """Σn_g²."""

    def __add__(self, other: Self) -> "Moments":
        return Moments(
            self.trajectories + other.trajectories,
            self.groups + other.groups,
            self.total + other.total,
            self.squares + other.squares,
            self.group_squares + other.group_squares,
            self.group_cross + other.group_cross,
            self.group_sizes + other.group_sizes,
        )

    @property
    def mean(self) -> float:
        """Mean over trajectories; there must be at least one."""
        return self.total / self.trajectories

    @property
    def spread(self) -> float:
        """Standard deviation of single trajectories."""
        return math.sqrt(max(0.0, self.squares / self.trajectories - self.mean**2))

    @property
    def variance_of_mean(self) -> float:
        """Squared standard error of the mean, over groups; infinite for fewer than two groups."""
        if self.groups < 2:
            return math.inf
        mean = self.mean
        residual = self.group_squares - 2 * mean * self.group_cross + mean * mean * self.group_sizes
        # The residual of a constant series is a rounding error.
        if residual <= 1e-12 * max(self.group_squares, mean * mean * self.group_sizes):
            return 0.0
        return self.groups / (self.groups - 1) * residual / self.trajectories**2


def p_rise(before: Moments, after: Moments) -> float:
    """Return the one-sided p-value that the mean is larger in `after`: Welch's test (1947), standard errors over
    groups.

    Two series that never vary have no error: 0 if the second is larger, otherwise 1.
    """
    if not before.trajectories or not after.trajectories:
        return 1.0
    first, second = before.variance_of_mean, after.variance_of_mean
    difference, variance = after.mean - before.mean, first + second
    if math.isinf(variance):
        return 1.0
    if variance == 0.0:
        return 0.0 if difference > 0 else 1.0
    # Welch–Satterthwaite.
    freedom = variance**2 / (first**2 / (before.groups - 1) + second**2 / (after.groups - 1))
    return student_tail(difference / math.sqrt(variance), freedom)


def effect(before: Moments, after: Moments) -> float:
    """Return Cohen's d: the rise of the mean in standard deviations of a trajectory (negative: a fall)."""
    difference = after.mean - before.mean
    spread = math.sqrt((before.spread**2 + after.spread**2) / 2)
    if spread == 0.0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / spread


def student_tail(t: float, freedom: float) -> float:
    """Return P(T > t) of Student's distribution: I_x(ν/2, 1/2) / 2 with x = ν / (ν + t²), for t ≥ 0.

    Abramowitz and Stegun, 26.5.27 and 26.7.1.
    """
    half = 0.5 * _beta_share(freedom / 2, 0.5, freedom / (freedom + t * t))
    return half if t >= 0 else 1.0 - half


def _beta_share(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b): its continued fraction (A&S 26.5.8), after Lentz."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _beta_share(b, a, 1.0 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x) - math.log(a)
    )
    c, d = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / _away_from_zero(1.0 + term * d)
            c = _away_from_zero(1.0 + term / c)
            value *= c * d
        if abs(c * d - 1.0) < _PRECISION:
            break
    return front * value


def _away_from_zero(x: float) -> float:
    return x if abs(x) > _TINY else _TINY
