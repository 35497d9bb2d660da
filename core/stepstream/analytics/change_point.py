"""Find a change of a success or error rate by a Bernoulli CUSUM, with known or estimated rates. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stepstream.analytics.success import Attempts

_LOWEST_RATE = 0.01


class Change(NamedTuple):
    """Alarm of a CUSUM. Positions count observations, or clusters, since the last reset, from 1."""

    alarm: int
    place: int
    """Estimated first observation after the change: the last zero of the sum + 1."""
    height: float
    """Value of the sum at the alarm."""


@dataclass(frozen=True, slots=True)
class Cusum:
    """Bernoulli CUSUM from rate p₀ to rate p₁, both known exactly (Page 1954).

    S = max(0, S + ln(p₁/p₀)) after a 1 and max(0, S + ln((1−p₁)/(1−p₀))) after a 0; alarm at S > h. The mean time to a
    false alarm is at least e^h observations. Detects a rise for p₁ > p₀, a fall for p₁ < p₀. Reset it at a promotion.
    """

    limit: float
    """h, above 0."""
    height: float = 0.0
    seen: int = 0
    last_zero: int = 0

    def add(self, observation: bool, before: float, after: float) -> "Cusum":
        """Return the state after one more observation, whose rate changes from `before` to `after`.

        Raises:
            ValueError: a rate is not inside (0, 1), or both are equal.
        """
        if not (0 < before < 1 and 0 < after < 1) or before == after:
            raise ValueError(f"a change from rate {before} to {after} cannot be detected")
        step = math.log(after / before) if observation else math.log((1 - after) / (1 - before))
        height, seen = max(0.0, self.height + step), self.seen + 1
        return Cusum(self.limit, height, seen, seen if height == 0 else self.last_zero)

    @property
    def alarm(self) -> bool:
        """True while the sum exceeds the limit."""
        return self.height > self.limit


def find_change(observations: Iterable[bool], before: float, after: float, limit: float) -> Change | None:
    """Return the first alarm over the observations; None: there is none."""
    state = Cusum(limit)
    for observation in observations:
        state = state.add(observation, before, after)
        if state.alarm:
            return Change(state.seen, state.last_zero + 1, state.height)
    return None


def find_fall(
    clusters: Iterable[Sequence[tuple[str, bool]]], baselines: Mapping[str, Attempts], effect: float, limit: float
) -> Change | None:
    """Return the first alarm over outcomes with their stratum, for a fall of success by `effect`; None: there is none.

    Each stratum is held to its own rate (Steiner et al. 2000), so a changed mix of strata is no change. The rates are
    estimates: since the last zero, the sum is the log ratio of two beta-binomial predictive probabilities (predictive
    ratio CUSUM, Bourazas et al. 2023, doi 10.1080/00224065.2022.2161435). The one without a change has
    Beta(c + ½, n − c + ½) of the stratum's baseline; the one after it the same weight n + 1 at a mean that is lower
    by `effect`, at least 0.01. For n → ∞ it is the CUSUM with known rates.

    A cluster of dependent outcomes, no empty one, adds the mean of its log ratios. With known rates their product has a
    mean of at most 1, however its outcomes depend on each other (inequality of the means). So from any start the ratio
    is a supermartingale, with clusters of one also over the error of the baseline, and the chance of a false alarm
    within T clusters is at most T·e^−h (Ville's inequality for each start). A baseline counts clusters, too.

    Raises:
        KeyError: a stratum has no baseline.
        ValueError: the success of a baseline is too low to fall.
    """
    weights = {name: _beta_weights(attempts, effect) for name, attempts in baselines.items()}
    since: dict[str, list[float]] = {}  # failures and successes of each stratum since the last zero
    height, last_zero = 0.0, 0
    for seen, cluster in enumerate(clusters, 1):
        if not since and all(success for _, success in cluster):  # the sum is zero and stays there
            last_zero = seen
            continue
        part = 1 / len(cluster)
        for stratum, success in cluster:
            counts = since.setdefault(stratum, [0.0, 0.0])
            before, after = weights[stratum][success]
            height += part * math.log((after + counts[success]) / (before + counts[success]))
            counts[success] += part
        if height <= 0:
            height, last_zero = 0.0, seen
            since.clear()
        elif height > limit:
            return Change(seen, last_zero + 1, height)
    return None


def _beta_weights(attempts: Attempts, effect: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the weights of failures, then of successes: before the change and after it."""
    total = attempts.n + 1
    rate = (attempts.successes + 0.5) / total
    after = max(_LOWEST_RATE, rate - effect)
    if after >= rate:
        raise ValueError(f"a success of {rate:.3g} cannot fall below {_LOWEST_RATE}")
    return (total * (1 - rate), total * (1 - after)), (total * rate, total * after)
