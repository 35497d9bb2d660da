"""The tokens of a minibatch as the losses see them.

How a minibatch's tokens are summed to its loss.
"""

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
    """log μ, as stored when the token was sampled, each under its own version."""
    advantage: Tensor
    """A."""
    proximal: Tensor | None = None
    """log p from a forward pass at the update's start; None where the objective does without."""
    sequences: Tensor | None = None
    """Which response a token is of, from 0: all that was sampled in one attempt, in however many training sequences
    it lies; int64. None where nothing is shared by a sequence."""
    steps: Tensor | None = None
    """Which step of which response a token is of, from 0; int64. None where nothing is shared by a step."""
    versions: Tensor | None = None
    """Version that sampled a token; int64. None where the objective does without."""
    version: int = 0
    """Version that the update trains from: the proximal policy's."""
    reference: Tensor | None = None
    """log ref of a frozen reference policy; None without a penalty."""

    def segments(self, level: Level) -> Tensor:
        """Which tokens share a ratio at `level`.

        Raises:
            ValueError: the batch does not say.
        """
        if level == "token":
            return torch.arange(self.current.numel())
        found = self.sequences if level == "sequence" else self.steps
        if found is None:
            raise ValueError(f"a ratio by {level} needs the batch's `{level}s`")
        return found


def token_scales(lengths: Sequence[int], rule: Aggregation | Literal["sum"], constant: int) -> list[float]:
    """What each token of a response counts in the loss, by response: the loss is -Σ scale · J over its tokens.

    Rejected tokens stay in the denominators, or rejecting some would raise the others; responses without trained
    tokens are left out. A response is what one attempt sampled, the o_i of GRPO's group (arXiv 2402.03300, eq. 3): an
    attempt whose context was edited lies in several training sequences, and counts once.

    Args:
        lengths: trained tokens of each response of the minibatch.
        rule: `grpo`: mean over responses of token means; `rloo`: mean over tokens; `dr_grpo`: sum over tokens
            divided by responses times `constant`, so that a long answer is not favoured; `sum`: sum over tokens, where
            their weights are normalised already.
        constant: trained tokens that a response may have (L_max).
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
