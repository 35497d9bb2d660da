"""Compute PPO's advantages: GAE over tokens with a critic."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stepstream.learner.advantages.arithmetic import gae
from stepstream.learner.advantages.base import Group, MissingInput, Need, Result, Rule, Trajectory, require
from stepstream.learner.advantages.batches import token_credits, whiten_tokens
from stepstream.learner.advantages.reinforce_pp import rewards_by_token, split_by_step


@dataclass(frozen=True, slots=True)
class PpoGae(Rule):
    """GAE over the trained tokens of an attempt, then whitened over the batch (PPO, arXiv 1707.06347; GAE, 1506.02438).

    Tokens that the agent did not sample (observations) are skipped: V and A are carried across them. The value target
    is A + V before whitening. An attempt cut by a limit continues with `final_value`.
    """

    discount: float = 1.0
    """γ, by token."""
    trace: float = 0.95
    """λ, by token."""
    whiten: bool = True
    bootstraps: ClassVar[bool] = True
    pays_tokens: ClassVar[bool] = True

    @property
    def needs(self) -> frozenset[Need]:
        """Values of a critic."""
        return frozenset({"values"})

    def __call__(self, groups: Sequence[Group]) -> Result:
        """Return advantages and value targets of every token; needs `token_values`, and `final_value` if truncated."""
        counts: Counter[str] = Counter({"groups": len(groups)})
        raw = [[self._estimate(trajectory) for trajectory in group] for group in groups]
        targets = [
            [
                [
                    [a + v for a, v in zip(advantages, step.token_values, strict=True)]
                    for advantages, step in zip(attempt, trajectory.steps, strict=True)
                ]
                for attempt, trajectory in zip(attempts, group, strict=True)
            ]
            for attempts, group in zip(raw, groups, strict=True)
        ]
        if self.whiten:
            whiten_tokens(raw, [True] * len(groups), counts)
        return Result(token_credits(raw, targets), counts)

    def _estimate(self, trajectory: Trajectory) -> list[list[float]]:
        for step in trajectory.steps:
            if len(step.token_values) != step.tokens:
                raise MissingInput(f"ppo_gae: {len(step.token_values)} `token_values` for {step.tokens} trained tokens")
        values = [value for step in trajectory.steps for value in step.token_values]
        after = require(trajectory.final_value, "ppo_gae", "final_value") if trajectory.truncated else 0.0
        rewards = rewards_by_token(trajectory.steps)
        return split_by_step(trajectory.steps, gae(rewards, values, after, self.discount, self.trace))
