"""Compute Tree-GRPO: compare the branches of one tree with each other and with the leaves of all trees."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from stepstream.learner.advantages.anchors import StepPosition
from stepstream.learner.advantages.arithmetic import standardised, total
from stepstream.learner.advantages.base import Aggregation, Group, GroupRule


@dataclass(frozen=True, slots=True)
class TreeGrpo(GroupRule):
    """A = A_intra + A_inter of a leaf, GRPO's over its tree and over all leaves of the task (arXiv 2509.21240).

    Every attempt is a leaf, with its own outcome as R. An attempt that continues behind a step of another
    (`Trajectory.branch`) is a branch of that one's tree: the steps up to there lead to both. A step that leads to
    several leaves gets their mean. The leaf of a tree of one leaf has A_intra = 0.
    """

    aggregation: ClassVar[Aggregation] = "grpo"

    @property
    def compares_outcomes(self) -> bool:
        """True: steps are not compared by their rewards."""
        return True

    def group(self, group: Group, counts: Counter[str]) -> list[list[float]]:
        """Return the mean over the leaves behind every step."""
        named = {trajectory.name: i for i, trajectory in enumerate(group) if trajectory.name}
        paths = [_path(group, named, i) for i in range(len(group))]
        trees: dict[Hashable, list[int]] = defaultdict(list)
        for i, (root, _) in enumerate(paths):
            trees[root].append(i)
        outcomes = [trajectory.outcome for trajectory in group]
        intra = [0.0] * len(group)
        for members in trees.values():
            for i, advantage in zip(members, standardised([outcomes[i] for i in members]), strict=True):
                intra[i] = advantage
        behind: dict[StepPosition, list[float]] = defaultdict(list)
        for (_, steps), inside, across in zip(paths, intra, standardised(outcomes), strict=True):
            for position in steps:
                behind[position].append(inside + across)
        return [
            [total(behind[i, t]) / len(behind[i, t]) for t in range(len(trajectory.steps))]
            for i, trajectory in enumerate(group)
        ]


def _path(group: Group, named: Mapping[str, int], leaf: int) -> tuple[Hashable, list[StepPosition]]:
    """Return the root of a leaf's tree, and the steps of the group on the path from it to the leaf.

    If an attempt on the path is missing (stale or excluded), its name serves as the root: its branches are still
    compared with each other.
    """
    i, steps, passed = leaf, [(leaf, t) for t in range(len(group[leaf].steps))], {leaf}
    while (branch := group[i].branch) is not None:
        name, after = branch
        before = named.get(name)
        if before is None:
            return name, steps
        if before in passed:
            return leaf, steps  # records that name each other have no root
        i = before
        passed.add(i)
        steps += [(i, t) for t in range(min(after + 1, len(group[i].steps)))]
    return i, steps
