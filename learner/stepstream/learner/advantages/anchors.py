"""Find the steps of a group that share a state, or another key: groups of steps inside a group of attempts."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence

from stepstream.learner.advantages.arithmetic import returns
from stepstream.learner.advantages.base import Group

StepPosition = tuple[int, int]
"""Index of the attempt in the group, and of the step in the attempt."""


def matching_steps(group: Group, key: Callable[[int, int], Hashable], counts: Counter[str]) -> list[list[StepPosition]]:
    """Return sets of two or more steps with equal keys, and count the other steps as `unmatched_steps`.

    Args:
        group: the attempts.
        key: key of attempt i's step t; None: equal to no other.
        counts: counters to add to.
    """
    by_key: dict[Hashable, list[StepPosition]] = defaultdict(list)
    for i, trajectory in enumerate(group):
        for t in range(len(trajectory.steps)):
            value = key(i, t)
            if value is None:
                counts["unmatched_steps"] += 1
            else:
                by_key[value].append((i, t))
    counts["unmatched_steps"] += sum(len(steps) == 1 for steps in by_key.values())
    return [steps for steps in by_key.values() if len(steps) > 1]


def group_returns(group: Group, discount: float) -> list[list[float]]:
    """Return the discounted return-to-go of every step, from its rewards."""
    return [returns([step.reward for step in trajectory.steps], discount) for trajectory in group]


def values_at(values: Sequence[Sequence[float]], steps: Sequence[StepPosition]) -> list[float]:
    """Return the values of the given steps."""
    return [values[i][t] for i, t in steps]


def zeros(group: Group) -> list[list[float]]:
    """Return 0 for every step."""
    return [[0.0] * len(trajectory.steps) for trajectory in group]
