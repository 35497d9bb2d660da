"""Measure stated confidence against outcomes: calibration error, Brier score and skill, AUROC. Pure.

`probabilities` are in [0, 1], one for each outcome.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def expected_calibration_error(probabilities: Sequence[float], outcomes: Sequence[bool], bins: int = 10) -> float:
    """Return Σ (n_b/n)·|accuracy - confidence| over bins of equal width, 1.0 in the last; biased up for few cases.

    Source: Guo et al. 2017, arXiv:1706.04599, equation 3. There is at least one outcome.
    """
    sums = [[0, 0.0, 0.0] for _ in range(bins)]
    for p, y in zip(probabilities, outcomes, strict=True):
        bin_sums = sums[min(bins - 1, int(p * bins + 1e-9))]
        bin_sums[0] += 1
        bin_sums[1] += p
        bin_sums[2] += y
    return sum(abs(hits - confidence) for _, confidence, hits in sums) / len(outcomes)


def brier(probabilities: Sequence[float], outcomes: Sequence[bool]) -> float:
    """Return the mean of (p - y)² (Brier 1950). There is at least one outcome."""
    return sum((p - y) ** 2 for p, y in zip(probabilities, outcomes, strict=True)) / len(outcomes)


def brier_skill(probabilities: Sequence[float], outcomes: Sequence[bool]) -> float | None:
    """Return 1 − Brier/(ȳ(1−ȳ)): 0 for always stating the base rate. None: all outcomes are equal, or none exists."""
    if len(set(map(bool, outcomes))) < 2:
        return None
    rate = sum(outcomes) / len(outcomes)
    return 1 - brier(probabilities, outcomes) / (rate * (1 - rate))


def auroc(probabilities: Sequence[float], outcomes: Sequence[bool]) -> float | None:
    """Return the chance that a success has the higher confidence of two, ties count ½ (Hanley and McNeil 1982).

    None: all outcomes are equal, or none exists.
    """
    good = np.asarray(outcomes, dtype=bool)
    positives, negatives = int(good.sum()), int((~good).sum())
    if not positives or not negatives:
        return None
    _, inverse, counts = np.unique(np.asarray(probabilities, dtype=float), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[good].sum() - positives * (positives + 1) / 2) / (positives * negatives))


@dataclass(frozen=True, slots=True)
class Calibration:
    """Figures of calibration. None: undefined, for `reason`."""

    ece: float | None
    brier: float | None
    skill: float | None
    auroc: float | None
    n: int
    reason: str = ""


def calibration(probabilities: Sequence[float], outcomes: Sequence[bool]) -> Calibration:
    """Return all figures of calibration."""
    n = len(outcomes)
    if not n:
        return Calibration(None, None, None, None, 0, "no attempt stated a confidence")
    area = auroc(probabilities, outcomes)
    return Calibration(
        expected_calibration_error(probabilities, outcomes),
        brier(probabilities, outcomes),
        brier_skill(probabilities, outcomes),
        area,
        n,
        "" if area is not None else "skill and AUROC need successes and failures",
    )
