"""Compute Stratified GRPO: compare attempts with those of the same stratum."""

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, Literal

from stepstream.learner.advantages.arithmetic import standardised
from stepstream.learner.advantages.base import Aggregation, Group, GroupRule, Trajectory


@dataclass(frozen=True, slots=True)
class Stratified(GroupRule):
    """A = α·A^S + (1 - α)·A^GRPO (Stratified GRPO's SAN, arXiv 2510.06214).

    A^S = (R - mean_k)/(std_k + ε) inside stratum k, for example the attempts with the same number of tool calls (of
    searches, in the paper); 0 for a stratum of one. The blend with the global estimator is the paper's; its α was not
    found. A public reimplementation uses 1; the default here is 0.8, so that strata of one still get a gradient.
    """

    aggregation: ClassVar[Aggregation] = "grpo"
    blend: float = 0.8
    """α, from 0 (GRPO) to 1 (strata alone)."""
    by: Literal["tools", "steps", "tokens"] = "tools"
    """Common property of a stratum: the number of tool calls or of steps, or the band of trained tokens (1, 2 to 3,
    4 to 7, …: equal numbers are rare)."""

    @property
    def compares_outcomes(self) -> bool:
        """True: steps are not compared by their rewards."""
        return True

    def group(self, group: Group, counts: Counter[str]) -> list[list[float]]:
        """Return the blend at every step of the attempt."""
        outcomes = [trajectory.outcome for trajectory in group]
        strata: dict[Hashable, list[int]] = defaultdict(list)
        for i, trajectory in enumerate(group):
            strata[self._stratum(trajectory)].append(i)
        inside = [0.0] * len(group)
        for members in strata.values():
            for i, advantage in zip(members, standardised([outcomes[i] for i in members]), strict=True):
                inside[i] = advantage
        return [
            [self.blend * own + (1 - self.blend) * whole] * len(trajectory.steps)
            for own, whole, trajectory in zip(inside, standardised(outcomes), group, strict=True)
        ]

    def _stratum(self, trajectory: Trajectory) -> int:
        if self.by == "tools":
            return trajectory.tool_calls
        if self.by == "steps":
            return len(trajectory.steps)
        return sum(step.tokens for step in trajectory.steps).bit_length()
