"""What every advantage rule takes and gives: groups of attempts as plain values in, one advantage a step out.

Pure and in float64. Sums are exact (`math.fsum`), so that the order of a group's attempts does not change a bit.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from stepstream.learner.advantages.arithmetic import has_variance, total

Aggregation = Literal["grpo", "rloo", "dr_grpo"]
"""How a loss counts tokens, named after the rule that counts so: mean over sequences of their token means (`grpo`),
mean over tokens (`rloo`), or sum over tokens divided by sequences times a constant (`dr_grpo`)."""


Need = Literal["values", "log_ratios", "hindsight"]
"""What a rule needs beside rewards, states and actions: a critic's values (`Step.value`, `Step.token_values`,
`Trajectory.final_value`), the current policy's ratios (`Step.log_ratio`), or `Step.hindsight`."""


class MissingInput(ValueError):
    """A rule was given steps without what it needs; the message names the rule and the field."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an attempt, as far as credit is concerned."""

    reward: float = 0.0
    """Reward of the step, all components together."""
    tokens: int = 1
    """Trained tokens of its response; 0: nothing of it is trained on, though its reward and its state count."""
    observation: Hashable = None
    """Key of the state in which it acted (GiGPO's anchor); None: like no other."""
    action: Hashable = None
    """Key of what it did; None: like no other."""
    value: float | None = None
    """V of the state in which it acted, from a critic."""
    hindsight: float | None = None
    """h > 0: how likely its action looks once the final state is known (HCAPO)."""
    log_ratio: float | None = None
    """log q = Σ over its tokens of log θ - log μ, current against behaviour policy (V-trace)."""
    token_values: tuple[float, ...] = ()
    """V before each trained token, from a critic; of length `tokens`."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """What was said of it, by reward component and before bounds and weight; those that are not paid too."""
    token_rewards: tuple[float, ...] = ()
    """What each trained token is rewarded beside the step's reward, as -β·(log θ - log ref); empty: nothing."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One attempt of a group."""

    steps: tuple[Step, ...]
    outcome: float
    """Its whole reward R, undiscounted."""
    truncated: bool = False
    """Whether a limit cut it off: what was still to come is then estimated, not 0."""
    final_observation: Hashable = None
    """Key of the state after the last step; None: like no other."""
    final_value: float | None = None
    """V of that state, from a critic; used where truncated."""
    succeeded: bool = False
    """Whether it reached its goal."""
    tool_calls: int = 0
    """Over all steps."""
    name: str = ""
    """Its id, by which branches name it; empty: none names it."""
    branch: tuple[str, int] | None = None
    """The attempt, and the place of its step, behind which it goes on; None: it begins by itself. (What may be trained
    on has all its steps, so that a step's index is its place.)"""


Group = Sequence[Trajectory]
"""Attempts at one task."""


@dataclass(frozen=True, slots=True)
class Credit:
    """The advantages of one attempt."""

    steps: tuple[float, ...]
    """By step; for rules that differ inside a step, the mean over its trained tokens (0 where it has none)."""
    tokens: tuple[tuple[float, ...], ...] | None = None
    """By step and trained token, for rules that differ inside a step; None: every token has its step's."""
    targets: tuple[float, ...] = ()
    """What a critic should have said, by step (by trained token of all steps for a token rule); empty: no critic."""


@dataclass(frozen=True, slots=True)
class Result:
    """The advantages of a batch of groups."""

    groups: list[list[Credit]]
    """By group and attempt, in the order given."""
    counts: Counter[str] = field(default_factory=Counter)
    """`groups`; `too_small` and `no_variance`: groups that were skipped, all zeros; `unmatched_steps`: steps that
    had no other to be compared with; `flat_batch`: batches without variance, all zeros."""


class Rule(ABC):
    """Turns the rewards of a batch of groups into advantages. Instances are values: the same input, the same bits."""

    aggregation: ClassVar[Aggregation] = "rloo"
    bootstraps: ClassVar[bool] = False
    """Whether it values what would have followed where an attempt was cut."""
    pays_tokens: ClassVar[bool] = False
    """Whether it adds up what each trained token is rewarded (`Step.token_rewards`)."""

    @property
    def discounts(self) -> frozenset[float]:
        """Every γ, from step to step, with which it adds up the rewards of an attempt; 1: it compares whole rewards."""
        return frozenset({1.0})

    @property
    def needs(self) -> frozenset[Need]:
        """What it must be told of every step."""
        return frozenset()

    @abstractmethod
    def __call__(self, groups: Sequence[Group]) -> Result:
        """Advantages of every step of every attempt.

        Raises:
            MissingInput: a step lacks what the rule needs.
        """

    def nothing_to_learn(self, group: Group) -> str:
        """Why the rule gives zeros to a group of one or more, whatever else is in the batch; empty where it does not.

        Returns:
            `too_small`, `no_variance` or nothing.
        """
        return ""


class GroupRule(Rule):
    """A rule that compares the attempts of one group with each other.

    Groups of one and groups whose outcomes are all equal carry no gradient: they are skipped and counted.
    """

    def __call__(self, groups: Sequence[Group]) -> Result:
        """Advantages, group by group."""
        result = Result([])
        for group in groups:
            result.counts["groups"] += 1
            if reason := self.nothing_to_learn(group):
                result.counts[reason] += 1
                result.groups.append([Credit((0.0,) * len(trajectory.steps)) for trajectory in group])
            else:
                result.groups.append([Credit(tuple(steps)) for steps in self.group(group, result.counts)])
        return result

    def nothing_to_learn(self, group: Group) -> str:
        """Whether nothing differs in what the rule compares."""
        return without_difference(self.compared(group))

    def compared(self, group: Group) -> list[float]:
        """What has to differ for the group to teach anything: the outcomes."""
        return [trajectory.outcome for trajectory in group]

    @abstractmethod
    def group(self, group: Group, counts: Counter[str]) -> list[list[float]]:
        """Advantages by attempt and step of a group where `compared` differs; may add to `counts`."""


class OutcomeRule(GroupRule):
    """A rule that gives every step of an attempt the same advantage, from the outcomes alone."""

    def group(self, group: Group, counts: Counter[str]) -> list[list[float]]:
        """The outcome's advantage at every step."""
        outcomes = self.outcomes([trajectory.outcome for trajectory in group])
        return [[advantage] * len(trajectory.steps) for advantage, trajectory in zip(outcomes, group, strict=True)]

    @abstractmethod
    def outcomes(self, outcomes: Sequence[float]) -> list[float]:
        """One advantage for each outcome of a group; the outcomes differ."""


def without_difference(compared: Sequence[float]) -> str:
    """`too_small` or `no_variance` where values cannot be told apart, else nothing."""
    if has_variance(compared):
        return ""
    return "too_small" if len(compared) < 2 else "no_variance"


def needed(value: float | None, rule: str, name: str) -> float:
    """The value, which the rule cannot do without.

    Raises:
        MissingInput: it is None.
    """
    if value is None:
        raise MissingInput(f"{rule} needs `{name}` of every step (`final_value` of truncated attempts)")
    return value


def values_of(trajectory: Trajectory, after: float, discount: float, rule: str) -> list[float]:
    """V of the state before each step.

    A step without trained tokens may have none: it then has V_t = r_t + γ·V_{t+1}, so that it is neither better nor
    worse than expected, and what it was paid reaches the steps before it.

    Args:
        trajectory: one attempt.
        after: V after its last step.
        discount: γ.
        rule: name of the rule that asks.

    Raises:
        MissingInput: a step with trained tokens has no value.
    """
    values = []
    for step in reversed(trajectory.steps):
        if step.value is None and not step.tokens:
            after = step.reward + discount * after
        else:
            after = needed(step.value, rule, "value")
        values.append(after)
    return values[::-1]


def token_mean(values: Sequence[float]) -> float:
    """Mean over a step's trained tokens; 0 where it has none."""
    return total(values) / len(values) if values else 0.0
