"""The decoupled clipped objective on log-probabilities of chosen tokens (arXiv 2110.00641, 2505.24298).

Three policies meet in it: μ, the behaviour policy that sampled a token (each token under its own version of the
weights); p, the proximal policy, which is the learner's at the start of an update; θ, the one that is trained.

    w = p/μ, truncated at C (TIS)      corrects for stale data, carries no gradient
    r = θ/p, clipped (PPO)             keeps the update near p
    J = min(w, C) · max(min(r·A, clip(r)·A), c·A if A < 0)

All tensors are flat: one entry for each trained token of a minibatch, sequence after sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from stepstream.learner.advantages import Aggregation

_LOG_RATIO_BOUND = 20.0


@dataclass(frozen=True, slots=True)
class Clip:
    """Where the objective stops to reward distance from the proximal and the behaviour policy."""

    low: float
    """r is clipped below at 1 - low."""
    high: float
    """r is clipped above at 1 + high."""
    cap: float
    """C: w is truncated above at this."""
    dual: float
    """c: with a negative advantage the term is at least c·A."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The objective by token, and what to tell about it."""

    objective: Tensor
    """J of each token, with gradient; 0 where a log-probability is not finite. Shape [tokens]."""
    weight: Tensor
    """w before truncation, detached; 0 where masked. Shape [tokens]."""
    clipped: Tensor
    """Whether clipping took the token's gradient away. Shape [tokens], bool."""


def log_ratio(numerator: Tensor, denominator: Tensor) -> tuple[Tensor, Tensor]:
    """Difference of log-probabilities, bounded to ±20 and 0 where it is not finite; and where it is finite."""
    finite = torch.isfinite(numerator) & torch.isfinite(denominator)
    zero = numerator.new_zeros(())
    difference = torch.where(finite, numerator, zero) - torch.where(finite, denominator, zero)
    return difference.clamp(-_LOG_RATIO_BOUND, _LOG_RATIO_BOUND), finite


def decoupled_terms(current: Tensor, proximal: Tensor, behaviour: Tensor, advantage: Tensor, clip: Clip) -> Terms:
    """The objective of each token.

    Args:
        current: log θ, with gradient. Shape [tokens], as all of them.
        proximal: log p.
        behaviour: log μ, as stored when the token was sampled.
        advantage: A of the token's attempt.
        clip: bounds.
    """
    advantage = advantage.detach()
    log_w, known = log_ratio(proximal.detach(), behaviour.detach())
    log_r, finite = log_ratio(current, proximal.detach())
    valid = known & finite
    w, r = log_w.exp(), log_r.exp()
    bounded = r.clamp(1 - clip.low, 1 + clip.high)
    term = torch.minimum(r * advantage, bounded * advantage)
    floor = clip.dual * advantage
    term = torch.where(advantage < 0, torch.maximum(term, floor), term)
    positive, negative = advantage > 0, advantage < 0
    outside = (positive & (r > 1 + clip.high)) | (negative & ((r < 1 - clip.low) | (r > clip.dual)))
    return Terms(
        objective=torch.where(valid, w.clamp(max=clip.cap) * term, term.new_zeros(())),
        weight=torch.where(valid, w, w.new_zeros(())),
        clipped=outside & valid,
    )


def token_scales(lengths: Sequence[int], rule: Aggregation, constant: int) -> list[float]:
    """What each token of a sequence counts in the loss, by sequence: the loss is -Σ scale · J over its tokens.

    Rejected tokens stay in the denominators, or rejecting some would raise the others; sequences without trained
    tokens are left out.

    Args:
        lengths: trained tokens of each sequence of the minibatch.
        rule: `grpo`: mean over sequences of token means; `rloo`: mean over tokens; `dr_grpo`: sum over tokens
            divided by sequences times `constant`, so that a long answer is not favoured.
        constant: trained tokens that a sequence may have (L_max).
    """
    sequences = max(1, sum(1 for length in lengths if length))
    if rule == "grpo":
        return [1.0 / (sequences * max(1, length)) for length in lengths]
    if rule == "rloo":
        return [1.0 / max(1, sum(lengths))] * len(lengths)
    if rule == "dr_grpo":
        return [1.0 / (sequences * constant)] * len(lengths)
    assert_never(rule)


def effective_share(weight: Tensor) -> float:
    """Effective sample size of the untruncated weights, as a share of their number: (Σw)²/(n·Σw²); 0 for none."""
    squares = float((weight.double() ** 2).sum())
    if squares == 0.0:
        return 0.0
    return float(weight.double().sum()) ** 2 / (squares * weight.numel())


def kl_estimate(weight: Tensor) -> float:
    """Estimate of KL(μ‖p) in nats a token, from tokens sampled by μ: mean of w - 1 - log w, never negative."""
    used = weight[weight > 0].double()
    return float((used - 1 - used.log()).mean()) if used.numel() else 0.0
