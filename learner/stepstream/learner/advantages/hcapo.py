"""Compute HCAPO: weigh a step by the probability of its action given the final state."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stepstream.learner.advantages.arithmetic import standardised, total
from stepstream.learner.advantages.base import (
    Group,
    GroupRule,
    MissingInput,
    Need,
    Trajectory,
    missing_difference,
    require,
)


class HindsightCritic(Protocol):
    """Scores the actions of an attempt by their probability given the final state.

    It must return the same scores for the same attempt, or a version cannot be rebuilt.
    """

    def __call__(self, trajectory: Trajectory) -> Sequence[float]:
        """Return h_t > 0 by step; only their ratios matter."""


def hindsight_of(logprobs: Sequence[float], temperature: float = 5.0) -> float:
    """Return h_t = exp(mean_j log θ(y_j | s_t, s_final) / temperature) (HCAPO, eq. 6) of a step's log-probabilities."""
    return math.exp(total(logprobs) / len(logprobs) / temperature) if logprobs else 1.0


def recorded_scores(trajectory: Trajectory) -> Sequence[float]:
    """Return the scores in the steps, from the policy's own forward pass."""
    return [require(step.hindsight, "hcapo", "hindsight") for step in trajectory.steps]


@dataclass(frozen=True, slots=True)
class Hcapo(GroupRule):
    """A = A^GRPO + ω·(Q_t - μ)/(σ + ε), μ and σ over all steps of the group (HCAPO, arXiv 2603.08754, eq. 3 and 8).

    ρ_t = clip(h_t / mean of the attempt's h, low, high) (eq. 7); Q_t = ρ_t·γ^(T-t)·R (eq. 5, where only the end is
    is rewarded). A success's negative hindsight terms become 0 (section 4.3). With `smooth`, Q_t is first replaced by
    (Q_t + Q_{t+1})/2 (appendix A, α = 0.5); the last stays, since the paper does not define it. Next to eq. 8 the paper
    has μ and σ "at time step t"; its algorithm 1 (line 16) and section 5.2 take them over all states, as this does.
    """

    weight: float = 1.0
    """ω."""
    discount: float = 0.95
    """γ, by step."""
    low: float = 0.8
    high: float = 1.2
    """Bounds of ρ."""
    smooth: bool = False
    critic: HindsightCritic = recorded_scores

    @property
    def discounts(self) -> frozenset[float]:
        """γ of Q_t, and 1 for whole rewards."""
        return frozenset({self.discount, 1.0})

    @property
    def needs(self) -> frozenset[Need]:
        """Scores of the policy itself, unless another critic gives them."""
        return frozenset({"hindsight"}) if self.critic is recorded_scores else frozenset()

    def nothing_to_learn(self, group: Group) -> str:
        """Return the reason why no scores of the critic can give an advantage; empty: some can.

        All Q_t are equal if every outcome is 0, or if the outcomes are equal and no attempt has several steps.
        """
        reason = missing_difference([trajectory.outcome for trajectory in group])
        varies = any(trajectory.outcome and len(trajectory.steps) > 1 for trajectory in group)
        return "" if reason == "no_variance" and varies else reason

    def group(self, group: Group, counts: Counter[str]) -> list[list[float]]:
        """Return GRPO's advantage plus the hindsight term."""
        values = [self.values(trajectory) for trajectory in group]
        flat = iter(standardised([value for attempt in values for value in attempt]))
        result = []
        for whole, trajectory in zip(standardised([t.outcome for t in group]), group, strict=True):
            terms = [next(flat) for _ in trajectory.steps]
            if trajectory.succeeded:
                terms = [max(0.0, term) for term in terms]
            result.append([whole + self.weight * term for term in terms])
        return result

    def values(self, trajectory: Trajectory) -> list[float]:
        """Return Q_t by step."""
        last = len(trajectory.steps) - 1
        values = [
            ratio * self.discount ** (last - t) * trajectory.outcome for t, ratio in enumerate(self.ratios(trajectory))
        ]
        if self.smooth:
            values = [0.5 * a + 0.5 * b for a, b in zip(values, values[1:] + values[-1:], strict=True)]
        return values

    def ratios(self, trajectory: Trajectory) -> list[float]:
        """Return ρ_t by step.

        Raises:
            MissingInput: the critic does not return one positive number per step.
        """
        scores = self.critic(trajectory)
        if len(scores) != len(trajectory.steps) or any(not 0 < score < math.inf for score in scores):
            raise MissingInput(
                f"hcapo: the critic returned {len(scores)} hindsight scores for {len(trajectory.steps)} steps, "
                "or one that is not positive"
            )
        mean = total(scores) / max(1, len(scores))
        return [min(self.high, max(self.low, score / mean)) for score in scores]
