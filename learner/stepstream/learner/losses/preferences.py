"""Compute losses on whole responses: demonstrations (SFT), pairs (DPO) and single judgements (KTO).

The log-probability of a response is the sum over its tokens (`sequence_sums`), not the mean.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def sequence_sums(values: Tensor, sequences: Tensor, count: int) -> Tensor:
    """Return the sum over each sequence's tokens. Shape [count].

    Args:
        values: value of each token. Shape [tokens].
        sequences: number of each token's sequence, from 0. Shape [tokens], int64.
        count: number of sequences, including those without tokens.
    """
    return values.new_zeros(count).index_add(0, sequences, values)


def sft(current: Tensor) -> Tensor:
    """Return the mean over tokens of -log θ; 0 without tokens. Scalar.

    Args:
        current: log θ of the demonstrated tokens. Shape [tokens].
    """
    return -current.sum() / max(1, current.numel())


def dpo(chosen: Tensor, rejected: Tensor, chosen_ref: Tensor, rejected_ref: Tensor, beta: float = 0.1) -> Tensor:
    """Return -log σ(β[(log θ - log ref) of the better response - the same of the worse]) (arXiv 2305.18290, eq. 7).

    Args:
        chosen: log θ of the better response of each pair. All have the shape [pairs].
        rejected: log θ of the worse response.
        chosen_ref: log ref of the better response.
        rejected_ref: log ref of the worse response.
        beta: β, the cost of distance from the reference.
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
    """Return λ_D(1 - σ(β(x - z))) of a good, λ_U(1 - σ(β(z - x))) of a bad response (arXiv 2402.01306, eq. 8).

    x = log θ - log ref of the response; z = max(0, kl), without gradient.

    Args:
        current: log θ of each response. Shape [responses].
        reference: log ref.
        good: True for a good response. Bool.
        kl: estimate of KL(θ‖ref): mean of x over responses to other prompts, as TRL estimates it. Scalar.
        beta: β, the cost of distance from the reference.
        weight_good: λ_D.
        weight_bad: λ_U.
    """
    gain = beta * (current - reference.detach() - kl.detach().clamp(min=0))
    return torch.where(good, weight_good * torch.sigmoid(-gain), weight_bad * torch.sigmoid(gain))
