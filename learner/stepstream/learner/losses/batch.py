"""Hold the tokens of a minibatch as input of the losses, and scale each token's share of the loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

import torch
from torch import Tensor

from stepstream.learner.advantages import Aggregation
from stepstream.learner.losses.ratios import Level


@dataclass(frozen=True, slots=True)
class Batch:
    """Trained tokens, flat and without padding, one sequence after the other. Every tensor has the shape [tokens]."""

    current: Tensor
    """log θ of the sampled token, with gradient."""
    behaviour: Tensor
    """log μ, as stored when the token was sampled, each under the version that sampled it."""
    advantage: Tensor
    """A."""
    proximal: Tensor | None = None
    """log p from a forward pass at the update's start; None: the objective does not need it."""
    sequences: Tensor | None = None
    """Number of each token's response, from 0: all tokens sampled in one attempt, in any number of training sequences;
    int64. None: the objective shares nothing within a sequence."""
    steps: Tensor | None = None
    """Number of each token's step, from 0, over all responses; int64. None: the objective shares nothing within a
    step."""
    versions: Tensor | None = None
    """Version that sampled each token; int64. None: the objective does not need it."""
    version: int = 0
    """Version that the update trains from: that of the proximal policy."""
    reference: Tensor | None = None
    """log ref of a frozen reference policy; None: the objective has no penalty."""

    def segments(self, level: Level) -> Tensor:
        """Return the number of the unit that each token shares a ratio with at `level`.

        Raises:
            ValueError: the batch has no such numbers.
        """
        if level == "token":
            return torch.arange(self.current.numel())
        numbers = self.sequences if level == "sequence" else self.steps
        if numbers is None:
            raise ValueError(f"a ratio by {level} needs the batch's `{level}s`")
        return numbers


def token_scales(lengths: Sequence[int], rule: Aggregation | Literal["sum"], constant: int) -> list[float]:
    """Return the scale of each response's tokens in the loss, -Σ scale · J.

    Rejected tokens stay in the denominators; otherwise a rejection would raise the other tokens. Responses without
    trained tokens are left out. A response is everything that one attempt sampled, the o_i of GRPO's group (arXiv
    2402.03300, eq. 3): an attempt whose context was edited has several training sequences and counts once.

    Args:
        lengths: number of trained tokens of each response of the minibatch.
        rule: `grpo`: mean over responses of token means; `rloo`: mean over tokens; `dr_grpo`: sum over tokens
            divided by responses times `constant`, so that a long answer is not favoured; `sum`: sum over tokens whose
            weights are already normalised.
        constant: largest number of trained tokens of a response (L_max).
    """
    responses = max(1, sum(1 for length in lengths if length))
    if rule == "grpo":
        return [1.0 / (responses * max(1, length)) for length in lengths]
    if rule == "rloo":
        return [1.0 / max(1, sum(lengths))] * len(lengths)
    if rule == "dr_grpo":
        return [1.0 / (responses * constant)] * len(lengths)
    if rule == "sum":
        return [1.0] * len(lengths)
    assert_never(rule)
