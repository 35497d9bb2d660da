"""A bonus for entropy that needs no more than the sampled tokens' log-probabilities."""

import torch
from torch import Tensor


def entropy_bonus(current: Tensor, log_q: Tensor, cap: float) -> Tensor:
    """An estimate of the entropy in nats at each token, whose gradient is one of the entropy's. Shape [tokens].

    ∇H(θ) = -E[log θ ∇log θ] over tokens of θ, since E[∇log θ] = 0; tokens of an older μ are weighted with
    sg(min(q, C)), which is biased where it truncates. As exact entropy needs all V log-probabilities of a token, which
    this learner never keeps, this is the price: the same mean, more variance.

    Args:
        current: log θ, with gradient; must be finite.
        log_q: log θ/μ, bounded.
        cap: C.
    """
    weight = log_q.detach().exp().clamp(max=cap)
    return -weight * current.detach() * torch.exp(current - current.detach())
