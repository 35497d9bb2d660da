"""What a stale token counts: w = p/μ made safe. A weight carries no gradient; 0 rejects the token.

None of them raises a token's weight above w, and rejecting one token leaves the others' as they were. (MIS's optional
rescaling of the kept weights to mean 1 breaks that and is not offered.)
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from stepstream.learner.losses.m2po import kept_by_second_moment


class Weight(Protocol):
    """Makes a weight of each token's log w."""

    def __call__(self, log_w: Tensor, proximal: Tensor, behaviour: Tensor, valid: Tensor) -> Tensor:
        """Weights of the tokens, shape [tokens] as all of them.

        Args:
            log_w: log of p/μ, bounded; of the token or of what it shares a ratio with.
            proximal: log p of the token itself, finite where `valid`.
            behaviour: log μ likewise.
            valid: tokens that count.
        """
        ...


@dataclass(frozen=True, slots=True)
class Unweighted:
    """Every token counts 1: right for fresh data, and where the ratio itself is taken to the behaviour policy."""

    def __call__(self, log_w: Tensor, proximal: Tensor, behaviour: Tensor, valid: Tensor) -> Tensor:
        """Ones."""
        return torch.ones_like(log_w)


@dataclass(frozen=True, slots=True)
class Truncated:
    """min(w, C): TIS, truncated importance sampling (Ionides 2008; Yao et al. 2025; slime, verl)."""

    cap: float = 2.0
    """C."""

    def __call__(self, log_w: Tensor, proximal: Tensor, behaviour: Tensor, valid: Tensor) -> Tensor:
        """w, at most C."""
        return log_w.exp().clamp(max=self.cap)


@dataclass(frozen=True, slots=True)
class Banded:
    """w where low ≤ w ≤ high, else 0.

    IcePop (Ant, 2025) with 0.5 and 5; the token mask of MIS (slime) with 0.5 and 2; AReaL's rejection sampling.
    """

    low: float = 0.5
    high: float = 5.0

    def __call__(self, log_w: Tensor, proximal: Tensor, behaviour: Tensor, valid: Tensor) -> Tensor:
        """w within the band."""
        w = log_w.exp()
        return torch.where((w >= self.low) & (w <= self.high), w, w.new_zeros(()))


@dataclass(frozen=True, slots=True)
class BinaryDivergence:
    """w where p and μ agree about the token, else 0: KPop (AReaL's documentation).

    They agree where max(KL(p‖μ), KL(μ‖p)) ≤ φ, each of the two-point distribution "this token or another". Unlike the
    ratio it does not mind a rare token's large ratio, and does mind a likely token's small one.
    """

    bound: float = 2.0
    """φ in nats."""

    def __call__(self, log_w: Tensor, proximal: Tensor, behaviour: Tensor, valid: Tensor) -> Tensor:
        """w where the divergence is within the bound."""
        w = log_w.exp()
        return torch.where(binary_divergence(proximal, behaviour) <= self.bound, w, w.new_zeros(()))


@dataclass(frozen=True, slots=True)
class SecondMoment:
    """w of the tokens that are left when those of largest (log w)² have gone: M2PO as AReaL has it (2510.01161)."""

    budget: float = 0.04
    """τ: mean of (log w)² of the tokens left is below this."""

    def __call__(self, log_w: Tensor, proximal: Tensor, behaviour: Tensor, valid: Tensor) -> Tensor:
        """w of the tokens that are kept."""
        return torch.where(kept_by_second_moment(log_w, valid, self.budget), log_w.exp(), log_w.new_zeros(()))


def binary_divergence(first: Tensor, second: Tensor) -> Tensor:
    """The larger of the two KL divergences, in nats, between "this token or another" under two policies.

    Args:
        first: log-probability of the token under one policy. Shape [tokens].
        second: under the other.
    """
    tiny = torch.finfo(first.dtype).eps
    # log(1 - p) without cancellation; a probability of 1 is taken as the largest below it.
    others_first = torch.log((-torch.expm1(first)).clamp(min=tiny))
    others_second = torch.log((-torch.expm1(second)).clamp(min=tiny))
    forth = first.exp() * (first - second) + others_first.exp() * (others_first - others_second)
    back = second.exp() * (second - first) + others_second.exp() * (others_second - others_first)
    return torch.maximum(forth, back)
