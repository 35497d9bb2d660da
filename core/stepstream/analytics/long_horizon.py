"""Project success to longer tasks: per-step success, hazard and survival by step. Pure.

All of it assumes that an agent does not recover from a failed step.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from stepstream.analytics.estimate import Estimate, undefined

_NO_RUN = "no run"


class Run(NamedTuple):
    """Length of a run in steps, at least 1, and True if its last step failed."""

    steps: int
    failed: bool


def step_success_gm(success: float, steps: float) -> float:
    """Return S^{1/T}: the geometric mean of the steps' success, for success S over T steps (T above 0).

    Not to be confused with CLEAR's `cost_normalized_accuracy`, which shares the abbreviation CNA with it.
    """
    return float(success ** (1 / steps))


def projected_success(success: float, steps: float, horizon: float) -> float:
    """Return S^{H/T}: success over H steps, for success S over T steps (T above 0)."""
    return float(success ** (horizon / steps))


def survival(runs: Sequence[Run]) -> list[float]:
    """Return the chance to survive steps 1 to the longest seen, Π(1 − d_t/n_t) (Kaplan and Meier 1958).

    d_t of n_t runs that reached step t failed at it. Empty without runs.
    """
    ends = Counter(run.steps for run in runs)
    failures = Counter(run.steps for run in runs if run.failed)
    at_risk, chance, curve = len(runs), 1.0, []
    for step in range(1, max(ends, default=0) + 1):
        chance *= 1 - failures[step] / at_risk
        curve.append(chance)
        at_risk -= ends[step]
    return curve


def hazard(runs: Sequence[Run]) -> float | None:
    """Return λ, failures / steps; None: no step."""
    steps = sum(run.steps for run in runs)
    return sum(run.failed for run in runs) / steps if steps else None


class Projection(NamedTuple):
    """Projected success, and True if the horizon is beyond the longest run seen."""

    estimate: Estimate
    extrapolated: bool


def survival_at(runs: Sequence[Run], horizon: int) -> Projection:
    """Return success over `horizon` steps: the survival curve where seen, (1−λ)^H beyond, marked extrapolated."""
    rate = hazard(runs)
    if rate is None:
        return Projection(undefined(_NO_RUN), extrapolated=False)
    curve = survival(runs)
    seen = horizon <= len(curve)
    value = (curve[horizon - 1] if horizon else 1.0) if seen else (1 - rate) ** horizon
    return Projection(Estimate(value, n=len(runs)), extrapolated=not seen)
