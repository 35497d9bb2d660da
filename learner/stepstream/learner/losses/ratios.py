"""Ratios of two policies' probabilities by token, by sequence (GSPO, arXiv 2507.18071) and by step (2511.20718).

Everything is in logarithms. A sequence is a response: all that was sampled in one attempt, each token in its own
context; GSPO's unit is that of the reward, which an attempt has and not a training sequence of it. A sequence's or a
step's ratio is the geometric mean of its tokens' ratios, so that a long one is not further from 1 than a short one.
"""

from typing import Literal

import torch
from torch import Tensor

Level = Literal["token", "sequence", "step"]
"""What shares one ratio."""

_LOG_RATIO_BOUND = 20.0


def log_ratio(numerator: Tensor, denominator: Tensor) -> tuple[Tensor, Tensor]:
    """Difference of log-probabilities, bounded to ±20 and 0 where it is not finite; and where it is finite."""
    finite = torch.isfinite(numerator) & torch.isfinite(denominator)
    zero = numerator.new_zeros(())
    difference = torch.where(finite, numerator, zero) - torch.where(finite, denominator, zero)
    return difference.clamp(-_LOG_RATIO_BOUND, _LOG_RATIO_BOUND), finite


def mean_over(values: Tensor, segments: Tensor, used: Tensor) -> Tensor:
    """Mean of the used tokens of each segment, at each of its tokens; 0 where a segment has none.

    Args:
        values: shape [tokens].
        segments: which segment each token is of, from 0. Shape [tokens], int64.
        used: tokens that count. Shape [tokens], bool.
    """
    if not values.numel():
        return values
    count = int(segments.max()) + 1
    totals = values.new_zeros(count).index_add(0, segments, torch.where(used, values, values.new_zeros(())))
    sizes = values.new_zeros(count).index_add(0, segments, used.to(values.dtype))
    return (totals / sizes.clamp(min=1)).index_select(0, segments)


def shared(log_ratios: Tensor, segments: Tensor, used: Tensor) -> Tensor:
    """The log of a segment's ratio at each of its tokens, in GSPO's token form (2507.18071, section 4.3).

    The value is the segment's, the gradient each token's own: sg(s) · θ/sg(θ). With one advantage in a segment the sum
    over its tokens has the gradient of the segment's ratio itself; with several, each weighs its own token.
    """
    return mean_over(log_ratios.detach(), segments, used) + (log_ratios - log_ratios.detach())
