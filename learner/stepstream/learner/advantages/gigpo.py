"""Compute GiGPO: compare whole attempts, and steps of the group with the same observation."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from stepstream.learner.advantages.anchors import group_returns, matching_steps, values_at, zeros
from stepstream.learner.advantages.arithmetic import centred, standardised
from stepstream.learner.advantages.base import Group, GroupRule


@dataclass(frozen=True, slots=True)
class GiGpo(GroupRule):
    """A = A^E + ω·A^S (GiGPO, arXiv 2505.10978, eq. 3 and 5 to 8).

    A^E = (R_i - R̄)/F over the attempts; A^S = (G_t - mean)/F over the group's steps with the same observation (the
    anchor), 0 for a step without a counterpart. Each attempt counts once in the mean and deviation of A^E (a published
    fork counts it once per step).
    """

    step_weight: float = 1.0
    """ω."""
    discount: float = 0.95
    """γ of G_t, by step."""
    scale: Literal["std", "none"] = "std"
    """F: the standard deviation plus ε (n - 1), or 1."""

    @property
    def discounts(self) -> frozenset[float]:
        """γ of the steps' returns, and 1 for whole rewards."""
        return frozenset({self.discount, 1.0})

    def group(self, group: Group, counts: Counter[str]) -> list[list[float]]:
        """Return the sum of both levels."""
        scaled = standardised if self.scale == "std" else centred
        gains = group_returns(group, self.discount)
        local = zeros(group)
        for steps in matching_steps(group, lambda i, t: group[i].steps[t].observation, counts):
            for (i, t), advantage in zip(steps, scaled(values_at(gains, steps)), strict=True):
                local[i][t] = advantage
        whole = scaled([trajectory.outcome for trajectory in group])
        return [[a + self.step_weight * s for s in steps] for a, steps in zip(whole, local, strict=True)]
