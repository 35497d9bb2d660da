"""Steps of a group that met the same thing: the groups inside a group."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence

from stepstream.learner.advantages.arithmetic import returns
from stepstream.learner.advantages.base import Group

Place = tuple[int, int]
"""Attempt and step."""


def meetings(group: Group, key: Callable[[int, int], Hashable], counts: Counter[str]) -> list[list[Place]]:
    """Steps with equal keys, two or more together; what stands alone is counted as `unmatched_steps`.

    Args:
        group: the attempts.
        key: of attempt i's step t; None: like no other.
        counts: to be added to.
    """
    met: dict[Hashable, list[Place]] = defaultdict(list)
    for i, trajectory in enumerate(group):
        for t in range(len(trajectory.steps)):
            found = key(i, t)
            if found is None:
                counts["unmatched_steps"] += 1
            else:
                met[found].append((i, t))
    counts["unmatched_steps"] += sum(len(places) == 1 for places in met.values())
    return [places for places in met.values() if len(places) > 1]


def group_returns(group: Group, discount: float) -> list[list[float]]:
    """Discounted return-to-go of every step, from what was paid."""
    return [returns([step.reward for step in trajectory.steps], discount) for trajectory in group]


def at(values: Sequence[Sequence[float]], places: Sequence[Place]) -> list[float]:
    """The values of some steps."""
    return [values[i][t] for i, t in places]


def zeros(group: Group) -> list[list[float]]:
    """0 for every step."""
    return [[0.0] * len(trajectory.steps) for trajectory in group]
