"""Compute GRPO: standardise outcomes within the group."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stepstream.learner.advantages.arithmetic import standardised
from stepstream.learner.advantages.base import Aggregation, OutcomeRule


@dataclass(frozen=True, slots=True)
class Grpo(OutcomeRule):
    """A_i = (R_i - R̄)/(std + ε) over the group, n - 1 (GRPO, arXiv 2402.03300)."""

    aggregation: ClassVar[Aggregation] = "grpo"

    def outcomes(self, outcomes: Sequence[float]) -> list[float]:
        """Return the standardised outcomes."""
        return standardised(outcomes)
