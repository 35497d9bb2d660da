"""Compute RLOO: REINFORCE with a leave-one-out baseline."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepstream.learner.advantages.arithmetic import centred
from stepstream.learner.advantages.base import OutcomeRule


@dataclass(frozen=True, slots=True)
class Rloo(OutcomeRule):
    """A_i = R_i - mean of the others' R = (R_i - R̄)·G/(G - 1) (RLOO, arXiv 2402.14740).

    The baseline does not depend on the attempt itself, so the gradient is unbiased.
    """

    def outcomes(self, outcomes: Sequence[float]) -> list[float]:
        """Return the difference from the others' mean."""
        n = len(outcomes)
        return [difference * n / (n - 1) for difference in centred(outcomes)]
