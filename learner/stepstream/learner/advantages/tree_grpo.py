"""Branches of one tree compared with each other, and with the leaves of all trees."""

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from stepstream.learner.advantages.base import Aggregation, Group, GroupRule, Trajectory
from stepstream.learner.advantages.figures import standardised, total


@dataclass(frozen=True, slots=True)
class TreeGrpo(GroupRule):
    """A = A_intra + A_inter of a leaf, GRPO's over its tree and over all leaves of the task (arXiv 2509.21240).

    A tree is one attempt whose steps branch (`Step.parent`), or several attempts with one `Trajectory.tree`. A leaf's
    R is the sum of the rewards from the root to it. A step that several leaves share gets their mean. The leaf of a
    tree of one leaf has A_intra = 0.
    """

    aggregation: ClassVar[Aggregation] = "grpo"

    def compared(self, group: Group) -> list[float]:
        """The leaves' rewards."""
        return [reward for trajectory in group for _, reward in _leaves(trajectory)]

    def group(self, group: Group, counts: Counter[str]) -> list[list[float]]:
        """The mean over the leaves behind every step."""
        leaves = [(i, path, reward) for i, trajectory in enumerate(group) for path, reward in _leaves(trajectory)]
        trees: dict[Hashable, list[int]] = defaultdict(list)
        for number, (i, _, _) in enumerate(leaves):
            tree = group[i].tree
            trees[(i,) if tree is None else ("named", tree)].append(number)
        rewards = [reward for _, _, reward in leaves]
        intra = [0.0] * len(leaves)
        for members in trees.values():
            for number, advantage in zip(members, standardised([rewards[n] for n in members]), strict=True):
                intra[number] = advantage
        behind: dict[tuple[int, int], list[float]] = defaultdict(list)
        for (i, path, _), inside, across in zip(leaves, intra, standardised(rewards), strict=True):
            for t in path:
                behind[i, t].append(inside + across)
        return [
            [total(behind[i, t]) / len(behind[i, t]) for t in range(len(trajectory.steps))]
            for i, trajectory in enumerate(group)
        ]


def _leaves(trajectory: Trajectory) -> list[tuple[list[int], float]]:
    """Steps from the root to each leaf, and the reward on the way; one leaf has the attempt's outcome."""
    before = [t - 1 if step.parent is None else step.parent for t, step in enumerate(trajectory.steps)]
    ends = sorted(set(range(len(before))) - set(before))
    if len(ends) < 2:
        return [(list(range(len(before))), trajectory.outcome)]
    leaves = []
    for end in ends:
        path = []
        while end >= 0:
            path.append(end)
            end = before[end]
        leaves.append((path, total(trajectory.steps[t].reward for t in path)))
    return leaves
