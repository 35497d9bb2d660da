"""Branches of one tree compared with each other, and with the leaves of all trees."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from stepstream.learner.advantages.arithmetic import standardised, total
from stepstream.learner.advantages.base import Aggregation, Group, GroupRule

Place = tuple[int, int]
"""Attempt and step."""


@dataclass(frozen=True, slots=True)
class TreeGrpo(GroupRule):
    """A = A_intra + A_inter of a leaf, GRPO's over its tree and over all leaves of the task (arXiv 2509.21240).

    Every attempt is a leaf, with its own outcome as R. One that goes on behind a step of another (`Trajectory.branch`)
    is a branch of that one's tree: the steps up to there lead to both. A step that leads to several leaves gets their
    mean. The leaf of a tree of one leaf has A_intra = 0.
    """

    aggregation: ClassVar[Aggregation] = "grpo"

    def group(self, group: Group, counts: Counter[str]) -> list[list[float]]:
        """The mean over the leaves behind every step."""
        named = {trajectory.name: i for i, trajectory in enumerate(group) if trajectory.name}
        ways = [_way(group, named, i) for i in range(len(group))]
        trees: dict[Hashable, list[int]] = defaultdict(list)
        for i, (root, _) in enumerate(ways):
            trees[root].append(i)
        outcomes = [trajectory.outcome for trajectory in group]
        intra = [0.0] * len(group)
        for members in trees.values():
            for i, advantage in zip(members, standardised([outcomes[i] for i in members]), strict=True):
                intra[i] = advantage
        behind: dict[Place, list[float]] = defaultdict(list)
        for (_, places), inside, across in zip(ways, intra, standardised(outcomes), strict=True):
            for place in places:
                behind[place].append(inside + across)
        return [
            [total(behind[i, t]) / len(behind[i, t]) for t in range(len(trajectory.steps))]
            for i, trajectory in enumerate(group)
        ]


def _way(group: Group, named: Mapping[str, int], leaf: int) -> tuple[Hashable, list[Place]]:
    """The root of a leaf's tree, and the steps of the group on the way from there.

    Where an attempt on the way is not here (stale, say, or barred), its name stands for the root: its branches are
    still compared with each other.
    """
    i, places, passed = leaf, [(leaf, t) for t in range(len(group[leaf].steps))], {leaf}
    while (branch := group[i].branch) is not None:
        name, after = branch
        before = named.get(name)
        if before is None:
            return name, places
        if before in passed:
            return leaf, places  # records that name each other have no root
        i = before
        passed.add(i)
        places += [(i, t) for t in range(min(after + 1, len(group[i].steps)))]
    return i, places
