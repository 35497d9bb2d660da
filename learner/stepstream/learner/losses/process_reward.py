"""Compute targets for a process reward model, from rollouts and from its own values, and the losses on them.

M_t in [0, 1] is the model's estimate at step t of the probability that the trajectory ends well.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from stepstream.learner.advantages.arithmetic import gae


def rollout_targets(
    visits: Sequence[Sequence[Hashable]], outcomes: Sequence[float], gamma: float
) -> dict[Hashable, float]:
    """Return Q̂(s, a) = mean of γ^(T-t)·R over the visits of a state and action (AgentPRM, arXiv 2502.10325, eq. 3).

    The exponent counts the remaining steps, so that the last step of a success is worth R. Code published with the
    paper has γ^t from the beginning instead, which rewards early steps.

    Args:
        visits: the pairs (state, action) of each trajectory, in order; equal values are one pair.
        outcomes: R of each trajectory, from 0 to 1.
        gamma: discount from step to step.
    """
    returns: defaultdict[Hashable, list[float]] = defaultdict(list)
    for pairs, outcome in zip(visits, outcomes, strict=True):
        for t, pair in enumerate(pairs):
            returns[pair].append(gamma ** (len(pairs) - 1 - t) * outcome)
    return {pair: sum(values) / len(values) for pair, values in returns.items()}


def value_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean binary cross-entropy of σ(logits) and targets in [0, 1] (arXiv 2502.10325, eq. 4). Scalar.

    Args:
        logits: logits of M_t. Shape [steps].
        targets: Q̂ of each step; carry no gradient. Shape [steps].
    """
    return binary_cross_entropy_with_logits(logits, targets.detach())


def bootstrapped_targets(values: Tensor, rewards: Tensor, gamma: float, trace: float) -> tuple[Tensor, Tensor]:
    """Return promise and progress targets of one trajectory: (Q̂, Â), without gradient (AgentPRM, arXiv 2511.08325).

    δ_t = r_t + γ·M_{t+1} - M_t with M = 0 after the end, Â_t = δ_t + γλ·Â_{t+1}, Q̂_t = M_t + Â_t.

    Args:
        values: M_t. Shape [steps].
        rewards: r_t; mostly 0 before the last. Shape [steps].
        gamma: discount γ.
        trace: λ.
    """
    detached = values.detach()
    traced = gae(rewards.tolist(), detached.tolist(), 0.0, gamma, trace)
    advantages = torch.tensor(traced, dtype=detached.dtype, device=detached.device)
    return detached + advantages, advantages


def promise_loss(values: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of ½(M_t - Q̂_t)² (arXiv 2511.08325, L_Q); 0 without steps. Scalar."""
    return 0.5 * (values - targets.detach()).square().sum() / max(1, len(values))


def progress_loss(values: Tensor, advantages: Tensor) -> Tensor:
    """Return the mean of ½(M_t - M_{t-1} - Â_t)² over the steps after the first (L_A); 0 with fewer than two. Scalar.

    The paper trains L_Q + β·L_A on Q̂ and Â from temporal differences with GAE; its formula of L_A was not found. This
    is the nearest reading of its description: the change of the value should be the advantage of the step.
    """
    changes = values[1:] - values[:-1]
    return 0.5 * (changes - advantages.detach()[1:]).square().sum() / max(1, len(changes))


def promise_and_progress(values: Tensor, rewards: Tensor, gamma: float, trace: float, beta: float) -> Tensor:
    """Return L_Q + β·L_A of one trajectory (arXiv 2511.08325). Scalar."""
    targets, advantages = bootstrapped_targets(values, rewards, gamma, trace)
    return promise_loss(values, targets) + beta * progress_loss(values, advantages)
