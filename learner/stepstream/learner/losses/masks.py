"""Reject tokens by a property of their response, without changing the scale of the other tokens."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from stepstream.learner.losses.batch import Batch
from stepstream.learner.losses.ratios import log_ratio, mean_over


class Mask(Protocol):
    """Selects the tokens that stay."""

    def __call__(self, batch: Batch, log_w: Tensor, valid: Tensor) -> Tensor:
        """Return the mask of tokens that stay. Shape [tokens], bool.

        Args:
            batch: the tokens, with `sequences`.
            log_w: log p/μ of each token, bounded.
            valid: mask of the tokens that count.
        """
        ...


@dataclass(frozen=True, slots=True)
class OffPolicySequences:
    """Drops tokens of negative advantage in a sequence that the policy has moved away from (OPSM).

    DeepSeek-V3.2 (arXiv 2512.02556): a sequence is dropped if its mean(log μ - log θ) exceeds δ. μ in place of p, as in
    TRL, covers staleness too. Tokens of advantage 0 or more stay.
    """

    bound: float = 0.5
    """δ in nats a token: 1e-4 in slime, 0.5 as an example in TRL."""

    def __call__(self, batch: Batch, log_w: Tensor, valid: Tensor) -> Tensor:
        """Return the tokens of near sequences, and all tokens without negative advantage."""
        distance, _ = log_ratio(batch.behaviour, batch.current.detach())
        return (batch.advantage >= 0) | (mean_over(distance, batch.segments("sequence"), valid) <= self.bound)


@dataclass(frozen=True, slots=True)
class Veto:
    """Drops a sequence with any w below a floor: it has a token that p would not have sampled (MIS, slime)."""

    floor: float = 1e-4
    """Smallest allowed w."""

    def __call__(self, batch: Batch, log_w: Tensor, valid: Tensor) -> Tensor:
        """Return the tokens of sequences without a w below the floor."""
        low = valid & (log_w.exp() < self.floor)
        segments = batch.segments("sequence")
        if not segments.numel():
            return valid
        count = int(segments.max()) + 1
        below = torch.zeros(count, dtype=torch.int64).index_add(0, segments, low.long())
        return below.index_select(0, segments) == 0
