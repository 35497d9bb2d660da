"""Test by betting: e-values and bounds of bounded outcomes, valid at every look. Pure.

Source: Waudby-Smith and Ramdas, arXiv:2010.09686 (capital processes, section 4); the grid of bets is this project's.
Observations are x ∈ [−1, 1]; the null hypothesis is E[x|past] ≤ m. A bet on a fixed λ multiplies the capital by
1 + λ(x − m), which never falls below 0, so its mean over a fixed grid of λ is an e-process: by Ville's inequality it
reaches 1/α with a chance of at most α under the null, however often it is looked at. The order of observations does
not matter for its value, so the state is how often each x was seen.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

BETS = (0.05, 0.1, 0.2, 0.4, 0.8)
HARM_FACTORS = (1.5, 2.0, 3.0, 5.0)
GROSS_HARM_FACTOR = 10.0
_BISECTIONS = 36
"""Bounds are exact to 2^-35, 3e-11."""

Counts = Mapping[float, int]
"""Number of observations by value, each in [−1, 1]."""


def pair(canary: Sequence[float | None], stable: Sequence[float | None], ks: int | Sequence[int] = 1) -> list[float]:
    """Join each canary outcome to the next k stable ones: x = y_c − mean y_s, each used once.

    Both are outcomes in [0, 1] by order of assignment; None: still open. `ks`: k for all, or that of each canary
    outcome, from the share at its assignment. The list ends before the first pair that waits for an outcome: outcomes
    that come late must not be skipped, since lateness may depend on the outcome.
    """
    differences, used = [], 0
    for i, outcome in enumerate(canary):
        k = ks if isinstance(ks, int) else ks[i]
        against = stable[used : used + k]
        used += k
        if outcome is None or len(against) < k or None in against:
            break
        differences.append(outcome - sum(y for y in against if y is not None) / k)
    return differences


def count(differences: Iterable[float]) -> Counter[float]:
    """Return the state of a test."""
    return Counter(differences)


def e_value(counts: Counts, m: float = 0.0) -> float:
    """Return E = mean over g of Π(1 + λ_g(x − m)), λ_g = g/(1 + max(0, m)); 1 without observations.

    m: 0 for a promotion, −margin for non-inferiority; in [−1, 1].
    """
    return math.exp(min(_log_e_value(counts, m), 700.0))


def lower_bound(counts: Counts, alpha: float) -> float:
    """Return the largest m in [−1, 1] with E ≥ 1/α: E[x] is at least that with confidence 1 − α, at every look."""
    target = -math.log(alpha)
    low, high = -1.0, 1.0
    if _log_e_value(counts, low) < target:
        return low
    for _ in range(_BISECTIONS):  # E falls with m
        middle = (low + high) / 2
        if _log_e_value(counts, middle) >= target:
            low = middle
        else:
            high = middle
    return low


def upper_bound(counts: Counts, alpha: float) -> float:
    """Return the upper bound with confidence 1 − α: the lower bound with the arms swapped."""
    return -lower_bound(swap(counts), alpha)


def swap(counts: Counts) -> dict[float, int]:
    """Return the state with canary and stable exchanged."""
    return {-x: n for x, n in counts.items()}


def always_valid_p(differences: Sequence[float], m: float = 0.0) -> float:
    """Return p = min over time of 1/E, at most 1: small at any look, valid at all."""
    x = np.asarray(differences, dtype=float)
    if not x.size:
        return 1.0
    bets = np.asarray(BETS) / (1 + max(0.0, m))
    capital = np.cumsum(np.log1p(bets[:, None] * (x - m)), axis=1)  # (bets, observations)
    return min(1.0, math.exp(-float(np.max(_log_mean_exp(capital)))))


def harm_e_value(harmed: int, n: int, limit: float) -> float:
    """Return the e-value against a harm rate of at most `limit` (p₀ in (0, 1)) after n trajectories.

    E = mean over q = 1.5, 2, 3, 5 · p₀, at most (1+p₀)/2, of (q/p₀)^harmed · ((1−q)/(1−p₀))^(n−harmed).
    """
    rates = np.minimum(np.asarray(HARM_FACTORS) * limit, (1 + limit) / 2)
    logs = harmed * np.log(rates / limit) + (n - harmed) * np.log((1 - rates) / (1 - limit))
    return math.exp(min(float(_log_mean_exp(logs[:, None])[0]), 700.0))


def gross_harm_e_value(harmed: int, n: int, limit: float) -> float:
    """Return the e-value of one bet on a harm rate far above the limit: q = 10 p₀, at most (1+p₀)/2.

    A mean of it and `harm_e_value` with fixed weights is an e-value again. It rises faster if nearly all trajectories
    are harmed, and is of no use if a fifth are.
    """
    rate = min(GROSS_HARM_FACTOR * limit, (1 + limit) / 2)
    log = harmed * math.log(rate / limit) + (n - harmed) * math.log((1 - rate) / (1 - limit))
    return math.exp(min(log, 700.0))


def e_benjamini_hochberg(e_values: Mapping[str, float], alpha: float) -> set[str]:
    """Return the hypotheses rejected by e-BH at false discovery rate α (Wang and Ramdas, arXiv:2009.02824).

    The k largest e-values, for the largest k whose k-th is at least K/(kα) of K. Valid under any dependence.
    """
    ordered = sorted(e_values, key=lambda name: (-e_values[name], name))
    total = len(ordered)
    for k in range(total, 0, -1):
        if e_values[ordered[k - 1]] >= total / (k * alpha):
            return set(ordered[:k])
    return set()


def _log_e_value(counts: Counts, m: float) -> float:
    if not counts:
        return 0.0
    x, n = np.fromiter(counts.keys(), float), np.fromiter(counts.values(), float)
    order = np.argsort(x)  # sums in one order: the same state gives the same bits
    bets = np.asarray(BETS) / (1 + max(0.0, m))
    logs = (n[order] * np.log1p(bets[:, None] * (x[order] - m))).sum(axis=1, keepdims=True)
    return float(_log_mean_exp(logs)[0])


def _log_mean_exp(logs: np.typing.NDArray[np.float64]) -> np.typing.NDArray[np.float64]:
    """Return ln mean exp over the first axis, without overflow."""
    highest = logs.max(axis=0)
    result: np.typing.NDArray[np.float64] = highest + np.log(np.mean(np.exp(logs - highest), axis=0))
    return result
