"""Bound the importance weight w = p/μ of stale tokens. A weight carries no gradient; 0 rejects the token.

No rule raises a token's weight above w, and rejecting one token does not change the others' weights. (MIS's optional
rescaling of the remaining weights to mean 1 breaks that and is not offered.)
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from stepstream.learner.losses.m2po import second_moment_mask


class Weight(Protocol):
    """Computes the weight of each token from its log w."""

    def __call__(self, log_w: Tensor, proximal: Tensor, behaviour: Tensor, valid: Tensor) -> Tensor:
        """Return the weights of the tokens. All tensors have the shape [tokens].

        Args:
            log_w: log of p/μ, bounded; of the token, or the mean of the unit that shares the weight.
            proximal: log p of the token itself, finite where `valid`.
            behaviour: log μ of the token itself, finite where `valid`.
            valid: mask of the tokens that count.
        """
        ...


@dataclass(frozen=True, slots=True)
class Unweighted:
    """Weight 1 for every token: for fresh data, and for ratios that already compare with the behaviour policy."""

    def __call__(self, log_w: Tensor, proximal: Tensor, behaviour: Tensor, valid: Tensor) -> Tensor:
        """Return ones."""
        return torch.ones_like(log_w)


@dataclass(frozen=True, slots=True)
class Truncated:
    """min(w, C): TIS, truncated importance sampling (Ionides 2008; Yao et al. 2025; slime, verl)."""

    cap: float = 2.0
    """C."""

    def __call__(self, log_w: Tensor, proximal: Tensor, behaviour: Tensor, valid: Tensor) -> Tensor:
        """Return w, at most C."""
        return log_w.exp().clamp(max=self.cap)


@dataclass(frozen=True, slots=True)
class Banded:
    """w where low ≤ w ≤ high, else 0.

    IcePop (Ant, 2025) with 0.5 and 5; the token mask of MIS (slime) with 0.5 and 2; AReaL's rejection sampling.
    """

    low: float = 0.5
    high: float = 5.0

    def __call__(self, log_w: Tensor, proximal: Tensor, behaviour: Tensor, valid: Tensor) -> Tensor:
        """Return w within the band, else 0."""
        w = log_w.exp()
        return torch.where((w >= self.low) & (w <= self.high), w, w.new_zeros(()))


@dataclass(frozen=True, slots=True)
class BinaryDivergence:
    """w where p and μ agree about the token, else 0: KPop (AReaL's documentation).

    They agree if max(KL(p‖μ), KL(μ‖p)) ≤ φ, each of the two-point distribution "this token or another". Unlike a bound
    on the ratio it accepts a rare token's large ratio and rejects a likely token's small one.
    """

    bound: float = 2.0
    """φ in nats."""

    def __call__(self, log_w: Tensor, proximal: Tensor, behaviour: Tensor, valid: Tensor) -> Tensor:
        """Return w where the divergence is within the bound, else 0."""
        w = log_w.exp()
        return torch.where(binary_divergence(proximal, behaviour) <= self.bound, w, w.new_zeros(()))


@dataclass(frozen=True, slots=True)
class SecondMoment:
    """w of the tokens left after dropping those of largest (log w)², else 0: M2PO as in AReaL (2510.01161)."""

    budget: float = 0.04
    """τ: upper bound of the mean (log w)² of the tokens left."""

    def __call__(self, log_w: Tensor, proximal: Tensor, behaviour: Tensor, valid: Tensor) -> Tensor:
        """Return w of the tokens left, else 0."""
        return torch.where(second_moment_mask(log_w, valid, self.budget), log_w.exp(), log_w.new_zeros(()))


def binary_divergence(first: Tensor, second: Tensor) -> Tensor:
    """Return the larger of the two KL divergences, in nats, between "this token or another" under two policies.

    Args:
        first: log-probability of the token under one policy. Shape [tokens].
        second: log-probability under the other policy.
    """
    tiny = torch.finfo(first.dtype).eps
    # log(1 - p) without cancellation; a probability of 1 is replaced by the largest below it.
    others_first = torch.log((-torch.expm1(first)).clamp(min=tiny))
    others_second = torch.log((-torch.expm1(second)).clamp(min=tiny))
    forth = first.exp() * (first - second) + others_first.exp() * (others_first - others_second)
    back = second.exp() * (second - first) + others_second.exp() * (others_second - others_first)
    return torch.maximum(forth, back)
