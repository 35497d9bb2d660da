"""Bound the second moment of the log-ratio in the two ways in which M2PO is implemented (arXiv 2510.01161).

AReaL drops whole tokens by (log p/μ)². The authors' own code solves one clip range for a batch, from the tokens whose
ratio θ/μ moves in the direction of the objective. Both need all tokens of one gradient step (`Objective.reach`).
"""

import math

import torch
from torch import Tensor


def second_moment_mask(log_w: Tensor, valid: Tensor, budget: float) -> Tensor:
    """Return the mask of tokens left after dropping the largest (log w)² until the mean is below the budget.

    At least one valid token is left, if there is one.

    Args:
        log_w: log p/μ. Shape [tokens].
        valid: mask of the tokens that count; the others are dropped.
        budget: τ.
    """
    mask = torch.zeros_like(valid)
    places = valid.nonzero().flatten()
    if not places.numel():
        return mask
    squares, order = (log_w.detach()[places] ** 2).sort(stable=True)
    means = squares.cumsum(0) / torch.arange(1, squares.numel() + 1, dtype=squares.dtype)
    # Squares rise, so their running means do too: the tokens with a mean below the budget stay.
    count = max(1, int((means < budget).sum()))
    mask[places[order[:count]]] = True
    return mask


def solved_range(log_q: Tensor, advantage: Tensor, valid: Tensor, budget: float) -> float:
    """Return the cap on |log q| of harmful tokens that keeps their mean square within the budget; ∞: no cap is needed.

    Harmful tokens have A > 0 and q > 1, or A < 0 and q < 1: an unbounded update would move them further. As in the
    authors' code, the cap is one of the tokens' own values: the largest for which the capped mean square stays within
    the budget; 0 if even the smallest exceeds it.

    Args:
        log_q: log θ/μ. Shape [tokens].
        advantage: A.
        valid: mask of the tokens that count.
        budget: τ.
    """
    log_q = log_q.detach()
    harmful = valid & (((advantage > 0) & (log_q > 0)) | ((advantage < 0) & (log_q < 0)))
    squares = (log_q[harmful] ** 2).sort().values
    count = squares.numel()
    if not count or float(squares.mean()) <= budget:
        return math.inf
    rest = torch.arange(count - 1, -1, -1, dtype=squares.dtype)
    capped = squares.cumsum(0) + rest * squares
    fitting = int((capped < budget * count).sum())
    return math.sqrt(float(squares[fitting - 1])) if fitting else 0.0
