"""Compute Dr. GRPO: GRPO without division by the standard deviation or the length."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stepstream.learner.advantages.arithmetic import centred
from stepstream.learner.advantages.base import Aggregation, OutcomeRule


@dataclass(frozen=True, slots=True)
class DrGrpo(OutcomeRule):
    """A_i = R_i - R̄ (Dr. GRPO, arXiv 2503.20783).

    Division by the standard deviation favours tasks that are almost always or almost never solved.
    """

    aggregation: ClassVar[Aggregation] = "dr_grpo"

    def outcomes(self, outcomes: Sequence[float]) -> list[float]:
        """Return the differences from the mean."""
        return centred(outcomes)
