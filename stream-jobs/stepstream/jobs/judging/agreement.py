"""Measure how far a judge agrees with people: share, Wilson interval, Cohen's kappa, Krippendorff's alpha. Pure."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

Z_95 = 1.959963984540054


class Kappa(NamedTuple):
    """Cohen's kappa and its standard error."""

    value: float
    error: float


def wilson(successes: float, n: int, z: float = Z_95) -> tuple[float, float]:
    """Return Wilson's interval of a share.

    (p + z²/2n ± z√(p(1-p)/n + z²/4n²)) / (1 + z²/n), for p = successes/n.
    """
    share = successes / n
    middle = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    width = 1 + z * z / n
    return max(0.0, (middle - spread) / width), min(1.0, (middle + spread) / width)


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
