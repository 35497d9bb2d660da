"""Measure staleness and its cost, and interpolate the proximal policy without a forward pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LAGS = (0, 1, 2, 4, 8)
"""Upper ends, in versions, of the staleness buckets; one more bucket is for larger lags."""


def interpolated_proximal(current: Tensor, behaviour: Tensor, versions: Tensor, version: int) -> Tensor:
    """Interpolate log p between μ and θ by version: log μ + a(log θ - log μ), without gradient. Shape [tokens].

    a = clip((v_p - v_μ)/(v_θ - v_μ), 0, 1) with v_p = v_θ - 1, and 0 for v_θ = v_μ (AReaL, `loglinear`). It saves the
    forward pass before an update, and is exact for tokens of version v_p.

    Args:
        current: log θ.
        behaviour: log μ.
        versions: v_μ of each token.
        version: v_p, the version that the update trains from; v_θ is the one that it creates.
    """
    current, gap = current.detach(), (version - versions).to(current.dtype)
    share = (gap / (gap + 1).clamp(min=1)).clamp(0, 1)
    return behaviour + share * (current - behaviour)


def effective_share(weight: Tensor) -> float:
    """Return the effective sample size of the untruncated weights over their number: (Σw)²/(n·Σw²); 0 for none."""
    squares = float((weight.double() ** 2).sum())
    if squares == 0.0:
        return 0.0
    return float(weight.double().sum()) ** 2 / (squares * weight.numel())


def kl_estimate(weight: Tensor) -> float:
    """Estimate KL(μ‖p) in nats per token from tokens sampled by μ: mean of w - 1 - log w, never negative."""
    used = weight[weight > 0].double()
    return float((used - 1 - used.log()).mean()) if used.numel() else 0.0


def lag_shares(lags: Tensor) -> list[float]:
    """Return the share of the tokens in each bucket of `LAGS`, and above. All 0 without tokens."""
    return [bucket.tokens / max(1, lags.numel()) for bucket in by_lag(lags)]


@dataclass(frozen=True, slots=True)
class Bucket:
    """The tokens of one range of lags."""

    least: int
    """Smallest lag in versions."""
    most: int | None
    """Largest lag in versions; None: no limit."""
    tokens: int
    shares: tuple[float, ...]
    """Share of the tokens with each mark; 0 without tokens."""
    effective_share: float
    """`effective_share` of their weights; 0 without weights."""
    kl: float
    """`kl_estimate` of their weights, in nats per token; 0 without weights."""


def by_lag(lags: Tensor, weight: Tensor | None = None, marks: Sequence[Tensor] = ()) -> list[Bucket]:
    """Return counts, marked shares and effective sample size by lag.

    Args:
        lags: staleness of each token in versions. Shape [tokens], int64.
        weight: w before truncation.
        marks: masks of tokens, for example of the clipped and of the rejected ones. Shape [tokens], bool.
    """
    buckets = []
    index = torch.bucketize(lags, torch.tensor(LAGS))
    for number, most in enumerate((*LAGS, None)):
        chosen = index == number
        count = int(chosen.sum())
        own = weight[chosen] if weight is not None else torch.zeros(0)
        buckets.append(
            Bucket(
                least=LAGS[number - 1] + 1 if number else 0,
                most=most,
                tokens=count,
                shares=tuple(int((mark & chosen).sum()) / max(1, count) for mark in marks),
                effective_share=effective_share(own),
                kl=kl_estimate(own),
            )
        )
    return buckets
