"""Measure how far raters agree, and correct a judged rate for the judge's errors. Pure."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from stepstream.analytics.estimate import Estimate, undefined


class Kappa(NamedTuple):
    """Cohen's kappa and its standard error."""

    value: float
    error: float


def cohen(pairs: Sequence[tuple[Hashable, Hashable]]) -> Kappa | None:
    """Return Cohen's kappa of two raters, κ = (p_o - p_e)/(1 - p_e), SE = √(p_o(1-p_o)/n)/(1-p_e).

    p_o is the share of pairs that agree, p_e the share expected by chance at each rater's own shares (Cohen 1960).
    None: p_e is 1, or there is no pair.
    """
    n = len(pairs)
    if not n:
        return None
    left, right = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    observed = sum(a == b for a, b in pairs) / n
    chance = sum(left[word] * right[word] for word in left) / (n * n)
    if chance >= 1:
        return None
    return Kappa((observed - chance) / (1 - chance), math.sqrt(observed * (1 - observed) / n) / (1 - chance))


def krippendorff(units: Iterable[Sequence[Hashable]]) -> float | None:
    """Return Krippendorff's nominal alpha, 1 - D_o/D_e, over units with two or more ratings; None: nothing to compare.

    D_o is the share of disagreeing pairs inside units, each unit of m ratings with weight m. D_e is the share among all
    ratings.
    """
    rated = [unit for unit in units if len(unit) > 1]
    total = sum(map(len, rated))
    if total < 2:
        return None
    disagreeing = 0.0
    for unit in rated:
        counts = Counter(unit)
        disagreeing += (len(unit) ** 2 - sum(count**2 for count in counts.values())) / (len(unit) - 1)
    overall = Counter(rating for unit in rated for rating in unit)
    expected = (total**2 - sum(count**2 for count in overall.values())) / (total - 1)
    return None if expected == 0 else 1 - disagreeing / expected


class Preferences(NamedTuple):
    """Verdicts of a judge on pairs that it saw in both orders. A flip contradicts itself and counts for neither."""

    first: int
    second: int
    flips: int

    @property
    def share_of_first(self) -> float | None:
        """Share of consistent verdicts for the first; None: there is none."""
        clear = self.first + self.second
        return self.first / clear if clear else None

    @property
    def flip_rate(self) -> float | None:
        """Share of pairs with a flip; None: no pair."""
        pairs = self.first + self.second + self.flips
        return self.flips / pairs if pairs else None


def true_rate(judged: float, sensitivity: float, specificity: float, n: int = 0) -> Estimate:
    """Return the true rate behind a judged rate, (q + sp − 1)/(se + sp − 1) clipped to [0, 1] (Rogan and Gladen 1978).

    Undefined for se + sp ≤ 1: such a judge is no better than chance.
    """
    if sensitivity + specificity <= 1:
        return undefined("the judge is no better than chance (sensitivity + specificity ≤ 1)", n)
    rate = (judged + specificity - 1) / (sensitivity + specificity - 1)
    return Estimate(min(1.0, max(0.0, rate)), n=n)
