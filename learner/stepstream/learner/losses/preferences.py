"""Losses on whole responses: demonstrations (SFT), pairs (DPO) and single judgements (KTO).

Log-probabilities of a response are sums over its tokens (`sequence_sums`), not means.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def sequence_sums(values: Tensor, sequences: Tensor, count: int) -> Tensor:
    """Sum over each sequence's tokens. Shape [count].

    Args:
        values: of each token. Shape [tokens].
        sequences: which sequence each token is of, from 0. Shape [tokens], int64.
        count: sequences, also those without tokens.
    """
    return values.new_zeros(count).index_add(0, sequences, values)


def sft(current: Tensor) -> Tensor:
    """Mean over tokens of -log θ; 0 without tokens. Scalar.

    Args:
        current: log θ of the demonstrated tokens. Shape [tokens].
    """
    return -current.sum() / max(1, current.numel())


def dpo(chosen: Tensor, rejected: Tensor, chosen_ref: Tensor, rejected_ref: Tensor, beta: float = 0.1) -> Tensor:
    """-log σ(β[(log θ - log ref) of the better response - the same of the worse]) (arXiv 2305.18290, eq. 7).

    Args:
        chosen: log θ of the better response of each pair. Shape [pairs], as all.
        rejected: of the worse.
        chosen_ref: log ref of the better.
        rejected_ref: of the worse.
        beta: how dear distance from the reference is.
    """
    margin = (chosen - chosen_ref.detach()) - (rejected - rejected_ref.detach())
    return -logsigmoid(beta * margin)


def kto(
    current: Tensor,
    reference: Tensor,
    good: Tensor,
    kl: Tensor,
    beta: float = 0.1,
    weight_good: float = 1.0,
    weight_bad: float = 1.0,
) -> Tensor:
    """λ_D(1 - σ(β(x - z))) for a good response, λ_U(1 - σ(β(z - x))) for a bad one (arXiv 2402.01306, eq. 8).

    x = log θ - log ref of the response; z = max(0, kl), without gradient.

    Args:
        current: log θ of each response. Shape [responses].
        reference: log ref.
        good: which are good. Bool.
        kl: estimate of KL(θ‖ref): mean of x over responses to other prompts, as TRL estimates it. Scalar.
        beta: how dear distance from the reference is.
        weight_good: λ_D.
        weight_bad: λ_U.
    """
    gain = beta * (current - reference.detach() - kl.detach().clamp(min=0))
    return torch.where(good, weight_good * torch.sigmoid(-gain), weight_bad * torch.sigmoid(gain))
