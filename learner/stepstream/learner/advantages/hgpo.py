"""Compute HGPO: compare steps with those that share one, two, ... of their latest observations."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from stepstream.learner.advantages.anchors import group_returns, matching_steps, values_at
from stepstream.learner.advantages.arithmetic import standardised, total
from stepstream.learner.advantages.base import Group, GroupRule


@dataclass(frozen=True, slots=True)
class Hgpo(GroupRule):
    """A = Σ_k w_k·A_k, w_k ∝ (k + 1)^α over the groups that exist (HGPO, arXiv 2602.22817).

    Group k of a step, k = 0..K, holds the steps that share (s_{t-k}, .., s_t); A_k = (G_t - mean)/(std + ε) there,
    dividing by n. Groups of one, and groups that would reach before the first step, are left out; the weights sum to 1
    over the rest. The official code (verl-agent's `recipe/hgpo`) does the same, but weighs by (k + 2)^α and also leaves
    out A_k = 0 (`as_released`).
    """

    discount: float = 0.95
    """γ of G_t, by step."""
    history: int = 2
    """K: largest number of earlier observations that must agree."""
    exponent: float = 1.0
    """α: the higher, the more a longer common history counts."""
    as_released: bool = False
    """True: weights and skipping of the released code instead of the paper's."""

    @property
    def discounts(self) -> frozenset[float]:
        """Its own γ."""
        return frozenset({self.discount})

    def group(self, group: Group, counts: Counter[str]) -> list[list[float]]:
        """Return the weighted mean over the levels."""
        gains = group_returns(group, self.discount)
        found: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for k in range(self.history + 1):
            level: Counter[str] = Counter()
            for steps in matching_steps(group, lambda i, t, k=k: _context(group, i, t, k), level):  # type: ignore[misc]
                for position, advantage in zip(steps, standardised(values_at(gains, steps), ddof=0), strict=True):
                    weight = float(k + (2 if self.as_released else 1)) ** self.exponent
                    if advantage or not self.as_released:
                        found.setdefault(position, []).append((weight, advantage))
            if k == 0:
                counts.update(level)
        return [
            [_mean(found.get((i, t), [])) for t in range(len(trajectory.steps))] for i, trajectory in enumerate(group)
        ]


def _context(group: Group, i: int, t: int, k: int) -> Hashable:
    if t < k:
        return None
    states = tuple(step.observation for step in group[i].steps[t - k : t + 1])
    return None if None in states else states


def _mean(items: list[tuple[float, float]]) -> float:
    weights = total(weight for weight, _ in items)
    return total(weight * advantage for weight, advantage in items) / weights if items else 0.0
