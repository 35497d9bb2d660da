"""Define the input, output and base classes of advantage rules: groups of attempts in, one advantage per step out.

Pure and in float64. Sums are exact (`math.fsum`), so that the order of a group's attempts does not change a bit.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from stepstream.learner.advantages.arithmetic import has_variance, total

Aggregation = Literal["grpo", "rloo", "dr_grpo"]
"""How a loss averages over tokens, named after the rule that introduced it: mean over sequences of their token means
(`grpo`), mean over tokens (`rloo`), or sum over tokens divided by sequences times a constant (`dr_grpo`)."""


Need = Literal["values", "log_ratios", "hindsight"]
"""Input of a rule besides rewards, states and actions: a critic's values (`Step.value`, `Step.token_values`,
`Trajectory.final_value`), the current policy's ratios (`Step.log_ratio`), or `Step.hindsight`."""


_NOISE = 1e-9
"""Advantages up to this share of the rewards (of 1, if they are larger) count as 0: rounding errors of equal values."""


class MissingInput(ValueError):
    """A step lacks an input that the rule needs; the message names the rule and the field."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an attempt, as input of the rules."""

    reward: float = 0.0
    """Reward of the step: the sum of its components."""
    tokens: int = 1
    """Number of trained tokens of its response; 0: it is not trained on, but its reward and its state count."""
    observation: Hashable = None
    """Key of the state in which it acted (GiGPO's anchor); None: equal to no other."""
    action: Hashable = None
    """Key of its action; None: equal to no other."""
    value: float | None = None
    """V of the state in which it acted, from a critic."""
    hindsight: float | None = None
    """h > 0: how likely its action looks once the final state is known (HCAPO)."""
    log_ratio: float | None = None
    """log q = Σ over its tokens of log θ - log μ, current against behaviour policy (V-trace)."""
    token_values: tuple[float, ...] = ()
    """V before each trained token, from a critic; of length `tokens`."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Raw values of its reward components, by name, before bounds and weight; also of unpaid components."""
    token_rewards: tuple[float, ...] = ()
    """Reward of each trained token in addition to the step's, such as -β·(log θ - log ref); empty: none."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One attempt of a group."""

    steps: tuple[Step, ...]
    outcome: float
    """Its whole reward R, undiscounted."""
    truncated: bool = False
    """True if a limit cut it off: the value after the cut is then estimated, not 0."""
    final_observation: Hashable = None
    """Key of the state after the last step; None: equal to no other."""
    final_value: float | None = None
    """V of that state, from a critic; used if truncated."""
    succeeded: bool = False
    """True if it reached its goal."""
    tool_calls: int = 0
    """Number over all steps."""
    name: str = ""
    """Its id, to which branches refer; empty: none does."""
    branch: tuple[str, int] | None = None
    """Parent attempt and index of the parent step behind which it continues; None: it has no parent. (A trainable
    attempt has all its steps, so that a step's index is its position.)"""


Group = Sequence[Trajectory]
"""Attempts at one task."""


@dataclass(frozen=True, slots=True)
class Credit:
    """The advantages of one attempt."""

    steps: tuple[float, ...]
    """By step; for token rules the mean over the step's trained tokens (0 if it has none)."""
    tokens: tuple[tuple[float, ...], ...] | None = None
    """By step and trained token, for token rules; None: every token has its step's advantage."""
    targets: tuple[float, ...] = ()
    """Value targets of a critic, by step (for a token rule by trained token of all steps); empty: no critic."""


@dataclass(frozen=True, slots=True)
class Result:
    """The advantages of a batch of groups."""

    groups: list[list[Credit]]
    """By group and attempt, in the order given."""
    counts: Counter[str] = field(default_factory=Counter)
    """`groups`: all; `too_small` and `no_variance`: skipped groups, all zeros; `unmatched_steps`: steps without a
    counterpart; `flat_batch`: batches without variance, all zeros."""


class Rule(ABC):
    """Converts the rewards of a batch of groups to advantages; the same input gives the same bits."""

    aggregation: ClassVar[Aggregation] = "rloo"
    bootstraps: ClassVar[bool] = False
    """True if it estimates the value that would have followed a cut."""
    pays_tokens: ClassVar[bool] = False
    """True if it sums the rewards of tokens (`Step.token_rewards`)."""

    @property
    def discounts(self) -> frozenset[float]:
        """Every γ, per step, with which it sums the rewards of an attempt; 1: it compares whole rewards."""
        return frozenset({1.0})

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs that every step must have."""
        return frozenset()

    @property
    def compares_outcomes(self) -> bool:
        """True if attempts of equal outcome get zeros, with any steps."""
        return False

    @abstractmethod
    def __call__(self, groups: Sequence[Group]) -> Result:
        """Return the advantages of every step of every attempt.

        Raises:
            MissingInput: a step lacks what the rule needs.
        """

    def nothing_to_learn(self, group: Group) -> str:
        """Return the reason why a group of one or more attempts gets zeros in any batch.

        Returns:
            `too_small`, `no_variance`, or an empty string if it may get other values.
        """
        return ""


class GroupRule(Rule):
    """A rule that compares the attempts of one group with each other.

    Groups of one, and groups whose advantages are all 0, carry no gradient: they are skipped and counted. A rule that
    compares steps may learn from attempts of equal outcome: their returns may differ where they passed the same state.
    """

    def __call__(self, groups: Sequence[Group]) -> Result:
        """Return the advantages, group by group."""
        result = Result([])
        for group in groups:
            result.counts["groups"] += 1
            counts: Counter[str] = Counter()
            reason, advantages = self._judge(group, counts)
            if reason:
                result.counts[reason] += 1
                result.groups.append([Credit((0.0,) * len(trajectory.steps)) for trajectory in group])
            else:
                result.counts.update(counts)
                result.groups.append([Credit(tuple(steps)) for steps in advantages])
        return result

    def nothing_to_learn(self, group: Group) -> str:
        """Return `too_small` for fewer than two attempts, `no_variance` if all advantages are 0, else an empty string.

        Advantages of steps without trained tokens do not count.
        """
        return self._judge(group, Counter())[0]

    def _judge(self, group: Group, counts: Counter[str]) -> tuple[str, list[list[float]]]:
        """Return the reason for skipping the group, or an empty string, and its advantages."""
        if len(group) < 2:
            return "too_small", []
        advantages = self.group(group, counts)
        return "" if _credits_any(group, advantages) else "no_variance", advantages

    @abstractmethod
    def group(self, group: Group, counts: Counter[str]) -> list[list[float]]:
        """Return the advantages of two or more attempts, by attempt and step; may add to `counts`."""


class OutcomeRule(GroupRule):
    """A rule that gives every step of an attempt the same advantage, from the outcomes alone."""

    @property
    def compares_outcomes(self) -> bool:
        """True: steps are not compared."""
        return True

    def group(self, group: Group, counts: Counter[str]) -> list[list[float]]:
        """Return the outcome's advantage at every step."""
        outcomes = self.outcomes([trajectory.outcome for trajectory in group])
        return [[advantage] * len(trajectory.steps) for advantage, trajectory in zip(outcomes, group, strict=True)]

    @abstractmethod
    def outcomes(self, outcomes: Sequence[float]) -> list[float]:
        """Return one advantage for each of two or more outcomes."""


def _credits_any(group: Group, advantages: Sequence[Sequence[float]]) -> bool:
    """Return True if any step with trained tokens has an advantage above the noise of its computation."""
    scale = max(
        (abs(value) for each in group for value in (each.outcome, *(s.reward for s in each.steps))), default=0.0
    )
    least = _NOISE * min(1.0, scale)
    return any(
        step.tokens and abs(advantage) > least
        for trajectory, own in zip(group, advantages, strict=True)
        for step, advantage in zip(trajectory.steps, own, strict=True)
    )


def missing_difference(compared: Sequence[float]) -> str:
    """Return `too_small` for fewer than two values, `no_variance` for equal ones, else an empty string."""
    if has_variance(compared):
        return ""
    return "too_small" if len(compared) < 2 else "no_variance"


def require(value: float | None, rule: str, name: str) -> float:
    """Return a value that the rule needs.

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
            after = require(step.value, rule, "value")
        values.append(after)
    return values[::-1]


def token_mean(values: Sequence[float]) -> float:
    """Return the mean over a step's trained tokens; 0 if it has none."""
    return total(values) / len(values) if values else 0.0
