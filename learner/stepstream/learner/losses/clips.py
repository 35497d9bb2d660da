"""Clip the ratio: turn ratio and advantage into the token's term of the objective.

Each clip returns the term, whose gradient flows only through the ratio (for CISPO, the log-probability), and a mask of
the tokens whose gradient it changed.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from stepstream.learner.losses.m2po import solved_range


class Clip(Protocol):
    """Bounds the effect of one token."""

    def __call__(self, log_r: Tensor, current: Tensor, advantage: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return the term of each token, and a mask of changed gradients. Shape [tokens] each.

        Args:
            log_r: log of the ratio, bounded, with gradient.
            current: log θ of the token itself, with gradient; finite where `valid`.
            advantage: A, without gradient.
            valid: mask of the tokens that count.
        """
        ...


@dataclass(frozen=True, slots=True)
class Ppo:
    """min(r·A, clip(r)·A), and at least c·A for a negative advantage.

    PPO (arXiv 1707.06347), the asymmetric bounds of DAPO (2503.14476, "clip-higher") and the dual clip (1912.09729).
    """

    low: float = 0.2
    """r is clipped below at 1 - low."""
    high: float = 0.28
    """r is clipped above at 1 + high."""
    dual: float = 3.0
    """c; infinite: no dual clip."""

    def __call__(self, log_r: Tensor, current: Tensor, advantage: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return the clipped terms."""
        r = log_r.exp()
        bounded = r.clamp(1 - self.low, 1 + self.high)
        term = torch.minimum(r * advantage, bounded * advantage)
        # An infinite bound times an advantage of 0 would be NaN.
        if math.isfinite(self.dual):
            term = torch.where(advantage < 0, torch.maximum(term, self.dual * advantage), term)
        positive, negative = advantage > 0, advantage < 0
        outside = (positive & (r > 1 + self.high)) | (negative & ((r < 1 - self.low) | (r > self.dual)))
        return term, outside


@dataclass(frozen=True, slots=True)
class Cispo:
    """sg(min(r, c))·A·log θ: no token loses its gradient (MiniMax-M1, arXiv 2506.13585, equations 4 and 5).

    The lower bound is off, as in the paper. TRL calls the cap c ε_high, slime 1 + ε_high.
    """

    cap: float = 5.0
    """c."""

    def __call__(self, log_r: Tensor, current: Tensor, advantage: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted log-probabilities."""
        r = log_r.detach().exp()
        logprobs = torch.where(valid, current, current.new_zeros(()))
        return r.clamp(max=self.cap) * advantage * logprobs, r > self.cap


@dataclass(frozen=True, slots=True)
class Sapo:
    """A·(4/τ)·σ(τ(r - 1)): a soft gate instead of a clip (SAPO, arXiv 2511.20347)."""

    positive: float = 1.0
    """τ for a positive advantage."""
    negative: float = 1.05
    """τ otherwise: slightly sharper, since lowering one token affects all others."""

    def __call__(self, log_r: Tensor, current: Tensor, advantage: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gated advantages."""
        tau = torch.where(advantage > 0, self.positive, self.negative).to(log_r.dtype)
        return advantage * 4 / tau * torch.sigmoid(tau * (log_r.exp() - 1)), torch.zeros_like(valid)


@dataclass(frozen=True, slots=True)
class SecondMomentRange:
    """PPO's clip with bounds solved from the batch: M2PO as in its authors' code (arXiv 2510.01161).

    The ratio must be θ/μ. The range is never narrower than 1 - low to 1 + high.
    """

    budget: float = 0.04
    """τ."""
    low: float = 0.3
    high: float = 0.5

    def __call__(self, log_r: Tensor, current: Tensor, advantage: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return the clipped terms."""
        bound = solved_range(log_r, advantage, valid, self.budget)
        low = max(self.low, 1 - math.exp(-bound))
        high = max(self.high, math.exp(bound) - 1)
        return Ppo(low, high, math.inf)(log_r, current, advantage, valid)
