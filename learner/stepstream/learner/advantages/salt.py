"""The graph of a group's trajectories: what several passed through is credited with their mean."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from stepstream.learner.advantages.anchors import meetings
from stepstream.learner.advantages.arithmetic import total
from stepstream.learner.advantages.base import Group, GroupRule, OutcomeRule
from stepstream.learner.advantages.grpo import Grpo


@dataclass(frozen=True, slots=True)
class Salt(GroupRule):
    """A step's advantage is the mean A_i of the attempts that share its edge (s, a, s') (SALT, arXiv 2510.20022).

    A_i comes from an outcome rule, GRPO's or RLOO's, both of which the paper refines. Edges of one attempt alone keep
    its own A_i; an attempt that passes an edge twice counts once. When the paper merges edges beyond equal (s, a, s')
    was not found, nor code of its authors; equal histories are not asked for here.
    """

    base: OutcomeRule = field(default_factory=Grpo)
    """Where A_i comes from."""

    def group(self, group: Group, counts: Counter[str]) -> list[list[float]]:
        """Means over merged edges."""
        whole = self.base.outcomes([trajectory.outcome for trajectory in group])
        result = [[a] * len(trajectory.steps) for a, trajectory in zip(whole, group, strict=True)]
        for places in meetings(group, lambda i, t: edge(group, i, t), counts):
            passing = {i for i, _ in places}
            shared = total(whole[i] for i in passing) / len(passing)
            for i, t in places:
                result[i][t] = shared
        return result


def edge(group: Group, i: int, t: int) -> Hashable:
    """(s, a, s') of attempt i's step t; None where one of them is not known."""
    step = group[i].steps[t]
    key = (step.observation, step.action, next_state(group, i, t))
    return None if None in key else key


def next_state(group: Group, i: int, t: int) -> Hashable:
    """Key of the state after attempt i's step t."""
    steps = group[i].steps
    return steps[t + 1].observation if t + 1 < len(steps) else group[i].final_observation
