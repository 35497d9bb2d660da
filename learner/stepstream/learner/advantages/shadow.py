"""Compute SHADOW: separate states with equal observations but different transitions, then apply local GAE."""

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from stepstream.learner.advantages.base import Group, GroupRule
from stepstream.learner.advantages.salt import next_state
from stepstream.learner.advantages.step_gae import local_gae


@dataclass(frozen=True, slots=True)
class Shadow(GroupRule):
    """Local GAE over states grouped by observation and transition (SHADOW, AAAI-26, v40i28.39570).

    Neither the paper's formulas nor code of its authors were found; its abstract names a grouping of states by
    consistent dynamics and a local GAE. The reading here: if one action in one observation led to different next
    observations, the observation hides different states. These visits are grouped by their next observation, all others
    by their observation. V̂ is the mean return of a group of visits, and A is GAE with it. In a group without
    contradictions this is critic-free step GAE.
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
        """Return GAE with the values of the grouped states."""
        next_states: dict[Hashable, set[Hashable]] = defaultdict(set)
        for i, trajectory in enumerate(group):
            for t, step in enumerate(trajectory.steps):
                next_states[step.observation, step.action].add(next_state(group, i, t))

        def state(i: int, t: int) -> Hashable:
            step = group[i].steps[t]
            if step.observation is None:
                return None
            # Steps without an action key never contradict: their actions may differ.
            is_ambiguous = step.action is not None and len(next_states[step.observation, step.action]) > 1
            return (step.observation, step.action, next_state(group, i, t)) if is_ambiguous else step.observation

        return local_gae(group, state, self.discount, self.trace, counts)
