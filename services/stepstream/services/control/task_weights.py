"""Weigh task families by how much an attempt at them teaches. Pure."""

from collections.abc import Mapping

from stepstream.analytics.success import Attempts


def edge_of_ability(trained: Mapping[str, Attempts]) -> dict[str, float]:
    """Return 4 p (1 − p) of each family, in (0, 1]: the variance of success, on which the gradient depends.

    p is (c + ½)/(n + 1) for c successes of n attempts. Families that were not attempted have the weight 1 of a family
    that is not named, so that they are tried. Learnability: arXiv:2502.12272.
    """
    rates = {family: (one.successes + 0.5) / (one.n + 1) for family, one in sorted(trained.items())}
    return {family: 4 * p * (1 - p) for family, p in rates.items()}
