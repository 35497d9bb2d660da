"""Summarise few runs: medians, order-statistic intervals, and runs that did not reach the target."""

import math
import statistics
from collections.abc import Sequence
from math import comb


def interval_rank(count: int, least: float = 0.9) -> tuple[int, float]:
    """Return (k, coverage) of the order statistics [x_(k), x_(n+1-k)] that enclose the median.

    It is the narrowest interval that covers the population's median with probability `least` or more, for any
    distribution: 1 - 2·P(Binomial(n, ½) < k). If none does, it is the whole range with its coverage.
    """
    coverage = [1 - 2 * sum(comb(count, i) for i in range(k)) / 2**count for k in range(1, (count + 1) // 2 + 1)]
    enough = [rank for rank, covered in enumerate(coverage, 1) if covered >= least]
    rank = enough[-1] if enough else 1
    return rank, coverage[rank - 1] if coverage else 0.0


def median_interval(values: Sequence[float | None]) -> tuple[float, float, float]:
    """Return the median and its interval; None, a run that did not reach the target, counts as infinite."""
    known = sorted(math.inf if value is None else value for value in values)
    rank, _ = interval_rank(len(known))
    return statistics.median(known), known[rank - 1], known[-rank]


def describe_coverage(count: int) -> str:
    """Describe the bounds of `median_interval` in words."""
    rank, coverage = interval_rank(count)
    which = "the least and the most" if rank == 1 else f"number {rank} from either end"
    return f"{which} in brackets, a range that covers the median with probability {coverage:.0%}"


def format_value(value: float, digits: int = 0) -> str:
    """Format a figure of a table."""
    return f"{value:,.{digits}f}" if math.isfinite(value) else "not reached"


def format_interval(values: Sequence[float | None], digits: int = 0) -> str:
    """Format an interval as `median (low–high)`."""
    if not values:
        return "—"
    middle, low, high = median_interval(values)
    if not math.isfinite(low):
        return "not reached"
    return f"{format_value(middle, digits)} ({format_value(low, digits)}–{format_value(high, digits)})"
