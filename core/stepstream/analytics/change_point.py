"""Find a change of a success or error rate by a Bernoulli CUSUM. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Change(NamedTuple):
    """Alarm of a CUSUM. Positions count observations since the last reset, from 1."""

    alarm: int
    place: int
    """Estimated first observation after the change: the last zero of the sum + 1."""
    height: float
    """Value of the sum at the alarm."""


@dataclass(frozen=True, slots=True)
class Cusum:
    """Bernoulli CUSUM from rate p₀ to rate p₁ (Page 1954), also with rates of each observation (risk-adjusted).

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
    return find_adjusted_change(((observation, before, after) for observation in observations), limit)


def find_adjusted_change(observations: Iterable[tuple[bool, float, float]], limit: float) -> Change | None:
    """Return the first alarm over observations with p₀ and p₁ of each, as those of its stratum (Steiner et al. 2000).

    A changed mix of strata is no change then.
    """
    state = Cusum(limit)
    for observation, before, after in observations:
        state = state.add(observation, before, after)
        if state.alarm:
            return Change(state.seen, state.last_zero + 1, state.height)
    return None
