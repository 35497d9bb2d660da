"""Moments of values whose groups are known, for tests of what is made of them."""

from collections.abc import Sequence

from stepstream.jobs.statistics.moments import Moments


def moments(*groups: Sequence[float]) -> Moments:
    """Of groups of values, none of them empty."""
    whole = Moments()
    for group in groups:
        size, total = len(group), sum(group)
        squares = sum(value * value for value in group)
        whole += Moments(size, 1, total, squares, total * total, size * total, size * size)
    return whole
