"""Which tokens are left out although they were sampled well: by response, without touching what the others count."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from stepstream.learner.losses.batch import Batch
from stepstream.learner.losses.ratios import log_ratio, mean_over


class Mask(Protocol):
    """Says which tokens stay."""

    def __call__(self, batch: Batch, log_w: Tensor, valid: Tensor) -> Tensor:
        """Which tokens stay. Shape [tokens], bool.

        Args:
            batch: all that is known of them, with sequences.
            log_w: log p/μ of each token, bounded.
            valid: tokens that count.
        """
        ...


@dataclass(frozen=True, slots=True)
class OffPolicySequences:
    """Drops tokens of negative advantage in a sequence that the policy has moved away from (OPSM).

    DeepSeek-V3.2 (arXiv 2512.02556): where mean(log μ - log θ) of the sequence is above δ. Taking μ and not p, as TRL
    does, covers staleness too. What succeeded stays.
    """

    bound: float = 0.5
    """δ in nats a token: 1e-4 in slime, 0.5 as an example in TRL."""

    def __call__(self, batch: Batch, log_w: Tensor, valid: Tensor) -> Tensor:
        """Tokens of sequences that are near enough, and all of no negative advantage."""
        gone, _ = log_ratio(batch.behaviour, batch.current.detach())
        return (batch.advantage >= 0) | (mean_over(gone, batch.segments("sequence"), valid) <= self.bound)


@dataclass(frozen=True, slots=True)
class Veto:
    """Drops a sequence in which any w is below a floor: one token that p would not have sampled (MIS, slime)."""

    floor: float = 1e-4
    """Smallest w that a sequence may have."""

    def __call__(self, batch: Batch, log_w: Tensor, valid: Tensor) -> Tensor:
        """Tokens of sequences without such a token."""
        low = valid & (log_w.exp() < self.floor)
        segments = batch.segments("sequence")
        if not segments.numel():
            return valid
        count = int(segments.max()) + 1
        found = torch.zeros(count, dtype=torch.int64).index_add(0, segments, low.long())
        return found.index_select(0, segments) == 0
