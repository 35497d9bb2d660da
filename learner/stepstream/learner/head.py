"""Log-probabilities of chosen tokens without all others': never a [tokens, vocabulary] tensor in memory.

The output layer is computed for a few tokens at a time, and again in the backward pass. With logits x = W h + b:

    log p(t) = x_t - log Σ_v exp(x_v)          ∂ log p(t) / ∂x_v = [v = t] - p(v)
    H = log Σ_v exp(x_v) - Σ_v p(v) x_v
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_MOST_LOGITS = {"cpu": 2**23, "cuda": 2**27}
"""Logits that are in memory at once, in float32, by kind of device: many enough for a matrix product at its best."""
_LEAST_TOKENS = 64


def chosen_logprobs(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of each target, and the entropy in nats of what it was chosen from (without gradient).

    Args:
        hidden: h, shape [tokens, size].
        weight: W, shape [vocabulary, size].
        bias: b, shape [vocabulary].
        targets: t, shape [tokens], int64.

    Returns:
        Both of shape [tokens], float32.
    """
    found: tuple[Tensor, Tensor] = _Chosen.apply(hidden, weight, bias, targets)  # type: ignore[no-untyped-call]
    return found


class _Chosen(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        lowered = _lowered(hidden), _lowered(weight)
        logprobs, entropy, z = (torch.empty(targets.shape, dtype=torch.float32, device=hidden.device) for _ in range(3))
        for part in _parts(hidden, weight):
            logits = _logits(lowered[0][part], lowered[1], bias)
            z[part] = logits.logsumexp(-1)
            logprobs[part] = logits.gather(1, targets[part, None])[:, 0] - z[part]
            p = (logits - z[part, None]).exp_()
            entropy[part] = z[part] - torch.linalg.vecdot(p, logits)
        ctx.save_for_backward(*lowered, bias, targets, z)
        ctx.mark_non_differentiable(entropy)
        ctx.dtypes = hidden.dtype, weight.dtype
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        hidden, weight, bias, targets, z = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        of_bias = None if bias is None else torch.zeros_like(of_weight[:, 0])
        for part in _parts(hidden, weight):
            grad = (_logits(hidden[part], weight, bias) - z[part, None]).exp_().mul_(-grads[0][part, None])
            grad.scatter_add_(1, targets[part, None], grads[0][part, None])
            if of_bias is not None:
                of_bias += grad.sum(0)
            lowered = grad.to(hidden.dtype)
            of_hidden[part] = lowered @ weight
            of_weight += _product(lowered.T, hidden[part])
        return of_hidden.to(ctx.dtypes[0]), of_weight.to(ctx.dtypes[1]), of_bias, None


def _parts(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    tokens = max(_LEAST_TOKENS, _MOST_LOGITS[hidden.device.type] // weight.shape[0])
    for start in range(0, hidden.shape[0], tokens):
        yield slice(start, start + tokens)


def _lowered(tensor: Tensor) -> Tensor:
    """On a GPU under autocast in its precision, for the matrix products; their sums stay in float32 even so."""
    if tensor.is_cuda and torch.is_autocast_enabled("cuda"):
        return tensor.to(torch.get_autocast_dtype("cuda"))
    return tensor.float()


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = _product(hidden, weight.T)
    return logits if bias is None else logits.add_(bias)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product in float32, whatever the factors are in."""
    return a @ b if a.dtype == torch.float32 else torch.mm(a, b, out_dtype=torch.float32)
