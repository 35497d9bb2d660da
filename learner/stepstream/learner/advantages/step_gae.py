"""GAE with the step as the unit: with a critic, and with the group in a critic's place."""

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
    needed,
    values_of,
)


@dataclass(frozen=True, slots=True)
class StepGae(Rule):
    """GAE over steps with V(s_t) from a critic at the last prompt token (StepPO, arXiv 2604.18401).

    r_t is the sum of the rewards inside the step. Advantages are whitened over the batch's trained steps and hold for
    every token of the step; the value target is A + V from before whitening. Steps without trained tokens have no V of
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
        """A critic's values."""
        return frozenset({"values"})

    def __call__(self, groups: Sequence[Group]) -> Result:
        """Advantages and value targets of every step; needs `value`, and `final_value` where truncated."""
        counts: Counter[str] = Counter({"groups": len(groups)})
        credits = [[self._estimate(trajectory) for trajectory in group] for group in groups]
        return Result(_whitened(credits, groups, counts) if self.whiten else credits, counts)

    def _estimate(self, trajectory: Trajectory) -> Credit:
        after = needed(trajectory.final_value, "step_ppo", "final_value") if trajectory.truncated else 0.0
        values = values_of(trajectory, after, self.discount, "step_ppo")
        advantages = gae([step.reward for step in trajectory.steps], values, after, self.discount, self.trace)
        return Credit(tuple(advantages), targets=tuple(a + v for a, v in zip(advantages, values, strict=True)))


@dataclass(frozen=True, slots=True)
class GroupStepGae(GroupRule):
    """GAE over steps with V̂(s) = mean G_t over the group's visits to s (critic-free StepPO).

    The paper has no critic-free form: this is the nearest reading. A state that was visited once has V̂ = G_t.
    What would have followed a cut is V̂ of the state in which it was cut, where that was visited, or else V̂ of the
    last state, as if the cut had changed nothing.
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
        """GAE against the group's own values."""
        return local_gae(group, lambda i, t: group[i].steps[t].observation, self.discount, self.trace, counts)


def local_gae(
    group: Group, key: Callable[[int, int], Hashable], discount: float, trace: float, counts: Counter[str]
) -> list[list[float]]:
    """GAE over steps, with the mean return of the group's visits to a state as its value.

    Args:
        group: the attempts.
        key: of the state of attempt i's step t; None: like no other.
        discount: γ.
        trace: λ.
        counts: gets `unmatched_steps`.
    """
    gains = group_returns(group, discount)
    visits: dict[Hashable, list[float]] = defaultdict(list)
    keys = [
        [(i, t) if (found := key(i, t)) is None else ("met", found) for t in range(len(trajectory.steps))]
        for i, trajectory in enumerate(group)
    ]
    for named, attempt in zip(keys, gains, strict=True):
        for name, gain in zip(named, attempt, strict=True):
            visits[name].append(gain)
    counts["unmatched_steps"] += sum(len(gains) == 1 for gains in visits.values())
    value = {name: total(gains) / len(gains) for name, gains in visits.items()}
    result = []
    for trajectory, named in zip(group, keys, strict=True):
        values = [value[name] for name in named]
        after = 0.0
        if trajectory.truncated and values:
            after = value.get(("met", trajectory.final_observation), values[-1])
        result.append(gae([step.reward for step in trajectory.steps], values, after, discount, trace))
    return result


def _whitened(credits: list[list[Credit]], groups: Sequence[Group], counts: Counter[str]) -> list[list[Credit]]:
    """Whitened over the steps that are trained on; the others get 0."""
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
