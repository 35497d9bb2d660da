"""Compute ratios of two policies by token, by sequence (GSPO, arXiv 2507.18071) and by step (2511.20718).

Everything is in logarithms. A sequence is a response: all tokens that one attempt sampled, each in its own context.
GSPO's unit is that of the reward, which belongs to the attempt and not to one of its training sequences. The ratio of a
sequence or step is the geometric mean of its tokens' ratios, so that a long one is not further from 1 than a short one.
"""

from typing import Literal

import torch
from torch import Tensor

Level = Literal["token", "sequence", "step"]
"""Unit that shares one ratio."""

_LOG_RATIO_BOUND = 20.0


def log_ratio(numerator: Tensor, denominator: Tensor) -> tuple[Tensor, Tensor]:
    """Return the difference of log-probabilities, bounded to ±20 and 0 if not finite, and the mask of finite ones."""
    finite = torch.isfinite(numerator) & torch.isfinite(denominator)
    zero = numerator.new_zeros(())
    difference = torch.where(finite, numerator, zero) - torch.where(finite, denominator, zero)
    return difference.clamp(-_LOG_RATIO_BOUND, _LOG_RATIO_BOUND), finite


def mean_over(values: Tensor, segments: Tensor, used: Tensor) -> Tensor:
    """Return the mean over the used tokens of each segment, at each of its tokens; 0 if a segment has none.

    Args:
        values: shape [tokens].
        segments: number of each token's segment, from 0. Shape [tokens], int64.
        used: mask of the tokens that count. Shape [tokens], bool.
    """
    if not values.numel():
        return values
    count = int(segments.max()) + 1
    totals = values.new_zeros(count).index_add(0, segments, torch.where(used, values, values.new_zeros(())))
    sizes = values.new_zeros(count).index_add(0, segments, used.to(values.dtype))
    return (totals / sizes.clamp(min=1)).index_select(0, segments)


def shared(log_ratios: Tensor, segments: Tensor, used: Tensor) -> Tensor:
    """Return the log of a segment's ratio at each of its tokens, in GSPO's token form (2507.18071, section 4.3).

    The value is the segment's, the gradient each token's own: sg(s) · θ/sg(θ). With one advantage per segment the sum
    over its tokens has the gradient of the segment's ratio itself; with several, each weighs its own token.
    """
    return mean_over(log_ratios.detach(), segments, used) + (log_ratios - log_ratios.detach())
