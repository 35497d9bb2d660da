"""Bootstrap by task: resample tasks with all their attempts, since attempts at one task are not independent. Pure."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from stepstream.analytics.estimate import Estimate, undefined

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

RESAMPLES = 2000
_ALL_UP_TO = 5
"""Up to as many tasks every resample is enumerated (5⁵ = 3125), so that the interval has no randomness."""


def interval(
    tasks: int, statistic: Callable[[Indices], Floats], *, seed: int = 0, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the percentile interval of a statistic over resampled tasks (Efron and Tibshirani 1993, chapter 13).

    `statistic` maps task indices of shape (resamples, tasks) to values of shape (resamples,). Resamples for which it
    is NaN are left out; if it is NaN for all, the interval is (NaN, NaN).

    Raises:
        ValueError: there is no task.
    """
    if tasks < 1:
        raise ValueError("cannot resample 0 tasks")
    values = statistic(_resamples(tasks, seed))
    defined = values[~np.isnan(values)]
    if not defined.size:
        return float("nan"), float("nan")
    tail = (1 - confidence) / 2
    low, high = np.quantile(defined, [tail, 1 - tail])
    return float(low), float(high)


def mean(values: Sequence[float] | Floats, *, n: int, left_out: int = 0, seed: int = 0) -> Estimate:
    """Return the mean over tasks with its interval. `values`: one figure a task; `n`: observations behind them."""
    data = np.asarray(values, dtype=np.float64)
    if not data.size:
        return undefined("no task has enough observations", left_out=left_out)
    low, high = interval(data.size, lambda chosen: data[chosen].mean(axis=1), seed=seed)
    return Estimate(float(data.mean()), low, high, n, data.size, left_out=left_out)


def ratio(numerators: Sequence[float], denominators: Sequence[float], *, seed: int = 0) -> Estimate:
    """Return Σnumerators/Σdenominators, both inside each resample; one pair a task (cluster)."""
    above, below = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    if above.shape != below.shape:
        raise ValueError(f"{above.size} numerators for {below.size} denominators")
    if not below.size or below.sum() == 0:
        return undefined("nothing to divide by", tasks=below.size)

    def resampled(chosen: Indices) -> Floats:
        totals = below[chosen].sum(axis=1)
        undefined_as_nan = np.full(len(totals), np.nan)
        values: Floats = np.divide(above[chosen].sum(axis=1), totals, out=undefined_as_nan, where=totals != 0)
        return values

    low, high = interval(below.size, resampled, seed=seed)
    return Estimate(float(above.sum() / below.sum()), low, high, int(below.sum()), below.size)


def difference(left: Sequence[float], right: Sequence[float], *, n: int, seed: int = 0) -> Estimate:
    """Return mean(left − right) over the same tasks, the difference inside each resample (paired by position).

    Raises:
        ValueError: the sequences have different lengths.
    """
    if len(left) != len(right):
        raise ValueError(f"{len(left)} tasks cannot be paired with {len(right)}")
    return mean(np.subtract(left, right), n=n, seed=seed)


@cache
def _resamples(tasks: int, seed: int) -> Indices:
    """Return task indices, shape (resamples, tasks)."""
    if tasks <= _ALL_UP_TO:
        return np.indices((tasks,) * tasks).reshape(tasks, -1).T.astype(np.intp)
    return np.random.default_rng(seed).integers(0, tasks, size=(RESAMPLES, tasks), dtype=np.intp)
