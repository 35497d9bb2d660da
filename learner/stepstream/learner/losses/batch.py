"""The tokens of a minibatch as the losses see them."""

from dataclasses import dataclass

import torch
from torch import Tensor

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
