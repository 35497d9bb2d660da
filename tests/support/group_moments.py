"""Compute the moments of grouped values."""

from collections.abc import Sequence

from stepstream.jobs.statistics.moments import Moments


def moments(*groups: Sequence[float]) -> Moments:
    """Return the moments of nonempty groups of values."""
    total_moments = Moments()
    for group in groups:
        size, total = len(group), sum(group)
        squares = sum(value * value for value in group)
        total_moments += Moments(size, 1, total, squares, total * total, size * total, size * size)
    return total_moments
