"""Estimate success over tasks: pass@k, pass^k, Wilson's interval, cluster standard error, differences. Pure.

Averages are over tasks, not attempts. Callers pass one version (model and harness) at a time: versions never pool. An
attempt that was lost by the platform (a killed worker) is left out by the caller; an agent's time-out is a failure.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stepstream.analytics import bootstrap
from stepstream.analytics.estimate import Estimate, undefined

Z_95 = 1.959963984540054


class Attempts(NamedTuple):
    """Attempts at one task."""

    n: int
    successes: int


def task_pass_at_k(attempts: Attempts, k: int) -> float | None:
    """Return 1 − C(n−c, k)/C(n, k), the unbiased chance of a success in k attempts (arXiv:2107.03374, equation 1).

    None: fewer than k attempts.
    """
    if attempts.n < k:
        return None
    return 1 - math.comb(attempts.n - attempts.successes, k) / math.comb(attempts.n, k)


def task_pass_hat_k(attempts: Attempts, k: int) -> float | None:
    """Return C(c, k)/C(n, k), the unbiased chance that k attempts all succeed (τ-bench, arXiv:2406.12045, section 3).

    None: fewer than k attempts. Neither (pass@1)^k over tasks nor (c/n)^k equals it.
    """
    if attempts.n < k:
        return None
    return math.comb(attempts.successes, k) / math.comb(attempts.n, k)


def pass_at_k(tasks: Sequence[Attempts], k: int, *, seed: int = 0) -> Estimate:
    """Return pass@k: the mean over tasks with n ≥ k attempts; the others are counted in `left_out`."""
    return _mean_over_tasks(tasks, [task_pass_at_k(task, k) for task in tasks], k, seed)


def pass_hat_k(tasks: Sequence[Attempts], k: int, *, seed: int = 0) -> Estimate:
    """Return pass^k: the mean over tasks with n ≥ k attempts; the others are counted in `left_out`."""
    return _mean_over_tasks(tasks, [task_pass_hat_k(task, k) for task in tasks], k, seed)


def wilson(successes: float, n: int, z: float = Z_95) -> tuple[float, float]:
    """Return Wilson's interval of a share of independent observations, as one attempt a task (Wilson 1927).

    (p + z²/2n ± z√(p(1−p)/n + z²/4n²)) / (1 + z²/n), for p = successes/n; n is at least 1.
    """
    share = successes / n
    middle = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    width = 1 + z * z / n
    return max(0.0, (middle - spread) / width), min(1.0, (middle + spread) / width)


def share(successes: int, n: int) -> Estimate:
    """Return a share of independent observations with Wilson's interval."""
    if not n:
        return undefined("no observation")
    low, high = wilson(successes, n)
    return Estimate(successes / n, low, high, n, n)


def pooled_standard_errors(tasks: Sequence[Attempts]) -> tuple[float, float, float] | None:
    """Return the pooled success p, its standard error √(p(1−p)/n) for independent attempts, and the one by task.

    The latter is √Σᵢ(Σⱼ(y−p))²/n (Liang and Zeger 1986, without the small-sample factor). None: no attempt.
    """
    n = sum(task.n for task in tasks)
    if not n:
        return None
    p = sum(task.successes for task in tasks) / n
    residuals = sum((task.successes - task.n * p) ** 2 for task in tasks)
    return p, math.sqrt(p * (1 - p) / n), math.sqrt(residuals) / n


def compare(left: Mapping[str, Attempts], right: Mapping[str, Attempts], *, seed: int = 0) -> Estimate:
    """Return pass@1 of `left` minus that of `right` over the tasks that both attempted, paired by task.

    The difference is taken inside each resample. Tasks of one side only are counted in `left_out`.
    """
    attempted = [{task: a for task, a in side.items() if a.n} for side in (left, right)]
    both = sorted(attempted[0].keys() & attempted[1].keys())
    left_out = len(attempted[0].keys() | attempted[1].keys()) - len(both)
    if not both:
        return undefined("the versions attempted no task in common", left_out=left_out)
    rates = [[side[task].successes / side[task].n for task in both] for side in attempted]
    n = sum(side[task].n for side in attempted for task in both)
    estimate = bootstrap.difference(*rates, n=n, seed=seed)
    return Estimate(estimate.value, estimate.low, estimate.high, n, len(both), left_out=left_out)


def _mean_over_tasks(tasks: Sequence[Attempts], values: Sequence[float | None], k: int, seed: int) -> Estimate:
    defined = [value for value in values if value is not None]
    left_out = len(values) - len(defined)
    if not defined:
        return undefined(f"no task has {k} attempts", left_out=left_out)
    n = sum(task.n for task, value in zip(tasks, values, strict=True) if value is not None)
    return bootstrap.mean(defined, n=n, left_out=left_out, seed=seed)
