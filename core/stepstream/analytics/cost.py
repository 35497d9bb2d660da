"""Compute figures of cost and speed, and those of the CLASSic and CLEAR frameworks. Pure.

CLEAR (arXiv:2511.14136) is known here from accounts of the paper. Its "pass@k" is pass^k (`success.pass_hat_k`).
CLASSic (Aisera) publishes no formulas: its five figures are these, success, and policy adherence, without a sum.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stepstream.analytics import bootstrap
from stepstream.analytics.estimate import Estimate, undefined
from stepstream.analytics.success import share

_NO_COST = "no attempt has a cost"


class Spread(NamedTuple):
    """Mean and percentiles of a quantity; None: no observation."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    n: int


def spread(values: Sequence[float]) -> Spread:
    """Return mean and percentiles (linear between order statistics)."""
    if not values:
        return Spread(None, None, None, None, 0)
    p50, p95, p99 = (float(value) for value in np.quantile(values, [0.5, 0.95, 0.99]))
    return Spread(float(np.mean(values)), p50, p95, p99, len(values))


def cost_normalized_accuracy(usd: Sequence[float], successes: Sequence[bool], *, seed: int = 0) -> Estimate:
    """Return 100·accuracy / mean USD a task (CLEAR's CNA). One task a position; undefined where nothing was spent."""
    if not usd:
        return undefined(_NO_COST)
    if sum(usd) == 0:
        return undefined("the attempts cost nothing", len(usd), len(usd))
    estimate = bootstrap.ratio([100.0 * good for good in successes], usd, seed=seed)
    return Estimate(estimate.value, estimate.low, estimate.high, len(usd), len(usd))


def cost_per_success(usd: Sequence[float], successes: Sequence[bool], *, seed: int = 0) -> Estimate:
    """Return all USD / successes (CLEAR's CPS), in USD; undefined without a success."""
    if not usd:
        return undefined(_NO_COST)
    if not any(successes):
        return undefined("no attempt succeeded", len(usd), len(usd))
    estimate = bootstrap.ratio(usd, [float(good) for good in successes], seed=seed)
    return Estimate(estimate.value, estimate.low, estimate.high, len(usd), len(usd))


def sla_compliance(seconds: Sequence[float], limit: float) -> Estimate:
    """Return the share of attempts within the limit in seconds (CLEAR's SCR; its limits: support 3, code 30)."""
    return share(sum(value <= limit for value in seconds), len(seconds))


def policy_adherence(violations: int, critical_actions: int) -> Estimate:
    """Return 1 − violations / policy-critical actions (CLEAR's PAS).

    Raises:
        ValueError: more violations than actions.
    """
    if violations > critical_actions:
        raise ValueError(f"{violations} violations in {critical_actions} actions")
    return share(critical_actions - violations, critical_actions)


def min_max(value: float, compared: Sequence[float]) -> float | None:
    """Return 1 − (x−min)/(max−min) over the compared agents: 1 is the cheapest or fastest. None: all are equal."""
    low, high = min(compared), max(compared)
    return None if low == high else 1 - (value - low) / (high - low)


def clear_composite(parts: Mapping[str, float | None], weights: Mapping[str, float] | None = None) -> Estimate:
    """Return Σ w·part over CLEAR's five dimensions, each in [0, 1]; equal weights by default.

    The figure changes with the agents that `min_max` compares, so no alarm may depend on it.
    """
    missing = sorted(name for name, value in parts.items() if value is None)
    if missing or not parts:
        return undefined(f"undefined: {', '.join(missing)}" if missing else "no dimension")
    chosen = weights or dict.fromkeys(parts, 1 / len(parts))
    return Estimate(sum(chosen[name] * value for name, value in parts.items() if value is not None), n=len(parts))
