"""Compute GAE over steps: with a critic, or with mean returns of the group as values."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from stepstream.learner.advantages.anchors import group_returns
from stepstream.learner.advantages.arithmetic import gae, total, whitened
from stepstream.learner.advantages.base import (
    Credit,
    Group,
    GroupRule,
    Need,
    Result,
    Rule,
    Trajectory,
    require,
    values_of,
)


@dataclass(frozen=True, slots=True)
class StepGae(Rule):
    """GAE over steps with V(s_t) from a critic at the last prompt token (StepPO, arXiv 2604.18401).

    r_t is the sum of the rewards inside the step. Advantages are whitened over the batch's trained steps and apply to
    every token of the step; the value target is A + V before whitening. Steps without trained tokens have no V of
    their own (`values_of`).
    """

    discount: float = 1.0
    """γ, by step."""
    trace: float = 1.0
    """λ, by step."""
    whiten: bool = True
    bootstraps: ClassVar[bool] = True

    @property
    def discounts(self) -> frozenset[float]:
        """Its own γ."""
        return frozenset({self.discount})

    @property
    def needs(self) -> frozenset[Need]:
        """Values of a critic."""
        return frozenset({"values"})

    def __call__(self, groups: Sequence[Group]) -> Result:
        """Return advantages and value targets of every step; needs `value`, and `final_value` if truncated."""
        counts: Counter[str] = Counter({"groups": len(groups)})
        credits = [[self._estimate(trajectory) for trajectory in group] for group in groups]
        return Result(_whitened(credits, groups, counts) if self.whiten else credits, counts)

    def _estimate(self, trajectory: Trajectory) -> Credit:
        after = require(trajectory.final_value, "step_ppo", "final_value") if trajectory.truncated else 0.0
        values = values_of(trajectory, after, self.discount, "step_ppo")
        advantages = gae([step.reward for step in trajectory.steps], values, after, self.discount, self.trace)
        return Credit(tuple(advantages), targets=tuple(a + v for a, v in zip(advantages, values, strict=True)))


@dataclass(frozen=True, slots=True)
class GroupStepGae(GroupRule):
    """GAE over steps with V̂(s) = mean G_t over the group's visits to s (critic-free StepPO).

    The paper has no critic-free form: this is the nearest reading. A state that was visited once has V̂ = G_t. The
    value after a cut is V̂ of the final state if the group visited it, else V̂ of the last step's state.
    """

    discount: float = 0.95
    """γ, by step."""
    trace: float = 0.95
    """λ, by step."""
    bootstraps: ClassVar[bool] = True

    @property
    def discounts(self) -> frozenset[float]:
        """Its own γ."""
        return frozenset({self.discount})

    def group(self, group: Group, counts: Counter[str]) -> list[list[float]]:
        """Return GAE with the group's own values."""
        return local_gae(group, lambda i, t: group[i].steps[t].observation, self.discount, self.trace, counts)


def local_gae(
    group: Group, key: Callable[[int, int], Hashable], discount: float, trace: float, counts: Counter[str]
) -> list[list[float]]:
    """Return GAE over steps, with the mean return of the group's visits to a state as its value.

    Args:
        group: the attempts.
        key: key of the state of attempt i's step t; None: equal to no other.
        discount: γ.
        trace: λ.
        counts: gets `unmatched_steps`.
    """
    gains = group_returns(group, discount)
    visits: dict[Hashable, list[float]] = defaultdict(list)
    states = [
        [(i, t) if (value := key(i, t)) is None else ("state", value) for t in range(len(trajectory.steps))]
        for i, trajectory in enumerate(group)
    ]
    for visited, attempt in zip(states, gains, strict=True):
        for state, gain in zip(visited, attempt, strict=True):
            visits[state].append(gain)
    counts["unmatched_steps"] += sum(len(gains) == 1 for gains in visits.values())
    state_values = {state: total(gains) / len(gains) for state, gains in visits.items()}
    result = []
    for trajectory, visited in zip(group, states, strict=True):
        values = [state_values[state] for state in visited]
        after = 0.0
        if trajectory.truncated and values:
            after = state_values.get(("state", trajectory.final_observation), values[-1])
        result.append(gae([step.reward for step in trajectory.steps], values, after, discount, trace))
    return result


def _whitened(credits: list[list[Credit]], groups: Sequence[Group], counts: Counter[str]) -> list[list[Credit]]:
    """Whiten the advantages over the trained steps; the others get 0."""
    trained = [
        advantage
        for attempts, group in zip(credits, groups, strict=True)
        for credit, trajectory in zip(attempts, group, strict=True)
        for advantage, step in zip(credit.steps, trajectory.steps, strict=True)
        if step.tokens
    ]
    scaled = whitened(trained)
    if scaled is None:
        counts["flat_batch"] += 1
    fresh = iter(scaled or [0.0] * len(trained))
    return [
        [
            Credit(tuple(next(fresh) if step.tokens else 0.0 for step in trajectory.steps), targets=credit.targets)
            for credit, trajectory in zip(attempts, group, strict=True)
        ]
        for attempts, group in zip(credits, groups, strict=True)
    ]
