"""The two readings of M2PO's bound on the second moment of the log-ratio (arXiv 2510.01161).

AReaL drops whole tokens by (log p/μ)². The authors' own code solves one clip range for a batch from the tokens whose
ratio θ/μ moves the way the objective pulls. Both take the tokens of one gradient step together (`Objective.reach`).
"""

import math

import torch
from torch import Tensor


def kept_by_second_moment(log_w: Tensor, valid: Tensor, budget: float) -> Tensor:
    """Which tokens stay when the largest (log w)² are dropped until the mean of the rest is below the budget.

    At least one stays, if there is one at all.

    Args:
        log_w: log p/μ. Shape [tokens].
        valid: tokens that count; the others are not kept.
        budget: τ.
    """
    kept = torch.zeros_like(valid)
    places = valid.nonzero().flatten()
    if not places.numel():
        return kept
    squares, order = (log_w.detach()[places] ** 2).sort(stable=True)
    means = squares.cumsum(0) / torch.arange(1, squares.numel() + 1, dtype=squares.dtype)
    # Squares rise, so their running means do: as many stay as have a mean below the budget.
    count = max(1, int((means < budget).sum()))
    kept[places[order[:count]]] = True
    return kept


def solved_range(log_q: Tensor, advantage: Tensor, valid: Tensor, budget: float) -> float:
    """The largest |log q| that a harmful token may have, so that their mean square is within the budget; ∞ if it is.

    Harmful are tokens with A > 0 and q > 1 or A < 0 and q < 1: those that an unbounded update would move further.
    As in the authors' code the bound is one of the tokens' own values: the largest such that capping the rest there
    stays within the budget; 0 where even the smallest is too much.

    Args:
        log_q: log θ/μ, shape [tokens].
        advantage: A.
        valid: tokens that count.
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
