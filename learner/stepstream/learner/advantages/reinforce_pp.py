"""Compute REINFORCE++: returns of tokens, whitened over the batch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stepstream.learner.advantages.arithmetic import returns, total
from stepstream.learner.advantages.base import Group, MissingInput, Result, Rule, Step, missing_difference
from stepstream.learner.advantages.batches import token_credits, whiten_tokens


@dataclass(frozen=True, slots=True)
class ReinforcePlusPlus(Rule):
    """Token return of r - β·k1, whitened over all trained tokens of the batch (REINFORCE++, arXiv 2501.03262).

    A step's reward is paid at its last trained token; -β·k1 comes as `token_rewards`. With `baseline` the group's mean
    outcome is first subtracted from every token's return, and groups of one or without variance are skipped. Without it
    no group is needed, and a group of successes only still learns from the batch's mean.
    """

    discount: float = 1.0
    """γ, by token."""
    baseline: bool = False
    pays_tokens: ClassVar[bool] = True

    @property
    def compares_outcomes(self) -> bool:
        """True with `baseline`: only whole outcomes decide whether a group is used."""
        return self.baseline

    def __call__(self, groups: Sequence[Group]) -> Result:
        """Return the advantages of every token of the batch."""
        counts: Counter[str] = Counter({"groups": len(groups)})
        tokens, used = [], []
        for group in groups:
            outcomes = [trajectory.outcome for trajectory in group]
            if reason := self.nothing_to_learn(group):
                counts[reason] += 1
            mean = total(outcomes) / len(outcomes) if self.baseline and outcomes else 0.0
            used.append(not reason)
            gains = [returns(rewards_by_token(trajectory.steps), self.discount) for trajectory in group]
            tokens.append(
                [
                    split_by_step(trajectory.steps, [gain - mean for gain in attempt])
                    for trajectory, attempt in zip(group, gains, strict=True)
                ]
            )
        whiten_tokens(tokens, used, counts)
        return Result(token_credits(tokens), counts)

    def nothing_to_learn(self, group: Group) -> str:
        """With `baseline`, return the reason why the outcomes do not differ; else an empty string.

        The baseline is the group's mean outcome, so attempts of equal outcome are not compared, even if their tokens'
        returns differ.
        """
        return missing_difference([trajectory.outcome for trajectory in group]) if self.baseline else ""


def rewards_by_token(steps: Sequence[Step]) -> list[float]:
    """Return the reward of every trained token of an attempt: its own, plus the step's at the step's last token.

    The reward of a step without trained tokens is paid at the last trained token before it.

    Raises:
        MissingInput: a step has another number of `token_rewards` than trained tokens.
    """
    rewards: list[float] = []
    for step in steps:
        if step.token_rewards and len(step.token_rewards) != step.tokens:
            raise MissingInput(f"{len(step.token_rewards)} `token_rewards` for {step.tokens} trained tokens")
        rewards += step.token_rewards or (0.0,) * step.tokens
        if rewards:
            rewards[-1] += step.reward
    return rewards


def split_by_step(steps: Sequence[Step], values: Sequence[float]) -> list[list[float]]:
    """Split the values of all trained tokens of an attempt by step."""
    result, start = [], 0
    for step in steps:
        result.append(list(values[start : start + step.tokens]))
        start += step.tokens
    return result
