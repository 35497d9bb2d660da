"""Estimate KL(θ‖ref) and an entropy bonus from the log-probabilities of sampled tokens.

See Schulman, "Approximating KL". With ℓ = log θ - log ref of a sampled token: k1 = ℓ, k2 = ℓ²/2, k3 = exp(-ℓ) - 1 + ℓ.
For tokens of θ, k1 and k3 have the KL as their mean, k3 is never negative, k2 is biased. Gradients differ from that: as
a loss on tokens of θ, k1's is 0 on average, k3's is that of KL(ref‖θ), and k2's is that of KL(θ‖ref). For tokens of an
older policy μ, with q = θ/μ, q·k1 and q·k3 with q's gradient have the right mean and the right gradient; sg(q)·k2 has
the right gradient.
"""

from typing import Literal, assert_never

import torch
from torch import Tensor

from stepstream.learner.losses.ratios import log_ratio

Use = Literal["reward", "on_policy_loss", "off_policy_loss"]


def k1(current: Tensor, reference: Tensor) -> Tensor:
    """Return ℓ, bounded to ±20; 0 if it is not finite."""
    return log_ratio(current, reference)[0]


def k2(current: Tensor, reference: Tensor) -> Tensor:
    """Return ℓ²/2."""
    return k1(current, reference) ** 2 / 2


def k3(current: Tensor, reference: Tensor) -> Tensor:
    """Return exp(-ℓ) - 1 + ℓ."""
    difference = k1(current, reference)
    return torch.expm1(-difference) + difference


def penalty(use: Use, current: Tensor, reference: Tensor, behaviour: Tensor | None = None) -> Tensor:
    """Return the KL(θ‖ref) penalty on each token, which the caller multiplies by β and subtracts. Shape [tokens].

    Args:
        use: `reward`: k1 without gradient, for the reward; `on_policy_loss`: k2; `off_policy_loss`: q·k3.
        current: log θ, with gradient.
        reference: log ref.
        behaviour: log μ, for `off_policy_loss`.

    Raises:
        ValueError: `off_policy_loss` without `behaviour`.
    """
    reference = reference.detach()
    if use == "reward":
        return k1(current, reference).detach()
    if use == "on_policy_loss":
        return k2(current, reference)
    if use == "off_policy_loss":
        if behaviour is None:
            raise ValueError("off_policy_loss needs the behaviour log-probabilities")
        return log_ratio(current, behaviour.detach())[0].exp() * k3(current, reference)
    assert_never(use)


def entropy_bonus(current: Tensor, log_q: Tensor, cap: float) -> Tensor:
    """Estimate the entropy at each token, in nats; the gradient estimates the entropy's gradient. Shape [tokens].

    ∇H(θ) = -E[log θ ∇log θ] over tokens of θ, since E[∇log θ] = 0; tokens of an older μ are weighted with
    sg(min(q, C)), which is biased where it truncates. Exact entropy would need all V log-probabilities of a token,
    which this learner never keeps. The estimate has the same mean and more variance.

    Args:
        current: log θ, with gradient; must be finite.
        log_q: log θ/μ, bounded.
        cap: C.
    """
    weight = log_q.detach().exp().clamp(max=cap)
    return -weight * current.detach() * torch.exp(current - current.detach())
