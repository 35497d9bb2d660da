"""Compute SALT: merge equal transitions of a group and credit each with the mean of the attempts that contain it."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from stepstream.learner.advantages.anchors import matching_steps
from stepstream.learner.advantages.arithmetic import total
from stepstream.learner.advantages.base import Group, GroupRule, OutcomeRule
from stepstream.learner.advantages.grpo import Grpo


@dataclass(frozen=True, slots=True)
class Salt(GroupRule):
    """A step's advantage is the mean A_i of the attempts that share its edge (s, a, s') (SALT, arXiv 2510.20022).

    A_i comes from an outcome rule, GRPO's or RLOO's, both of which the paper refines. Edges of a single attempt keep
    its own A_i; an attempt that passes an edge twice counts once. Neither the paper's condition for merging edges,
    beyond equal (s, a, s'), nor code of its authors was found; equal histories are not required here.
    """

    base: OutcomeRule = field(default_factory=Grpo)
    """Outcome rule that gives A_i."""

    @property
    def compares_outcomes(self) -> bool:
        """True: steps are not compared by their rewards."""
        return True

    def group(self, group: Group, counts: Counter[str]) -> list[list[float]]:
        """Return the means over merged edges."""
        whole = self.base.outcomes([trajectory.outcome for trajectory in group])
        result = [[a] * len(trajectory.steps) for a, trajectory in zip(whole, group, strict=True)]
        for steps in matching_steps(group, lambda i, t: edge(group, i, t), counts):
            passing = {i for i, _ in steps}
            shared = total(whole[i] for i in passing) / len(passing)
            for i, t in steps:
                result[i][t] = shared
        return result


def edge(group: Group, i: int, t: int) -> Hashable:
    """Return (s, a, s') of attempt i's step t; None if one of them is unknown."""
    step = group[i].steps[t]
    key = (step.observation, step.action, next_state(group, i, t))
    return None if None in key else key


def next_state(group: Group, i: int, t: int) -> Hashable:
    """Return the key of the state after attempt i's step t."""
    steps = group[i].steps
    return steps[t + 1].observation if t + 1 < len(steps) else group[i].final_observation
