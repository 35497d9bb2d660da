"""Compute log-probabilities of chosen tokens without a [tokens, vocabulary] tensor in memory.

The output layer is computed for a few tokens at a time. With logits x = W h + b:

    log p(t) = x_t - log Σ_v exp(x_v)          ∂ log p(t) / ∂x_v = [v = t] - p(v)
    H = log Σ_v exp(x_v) - Σ_v p(v) x_v        ∂ log p(t) / ∂h = Σ_v ([v = t] - p(v)) W_v

If W and b are frozen, as below adapters, ∂ log p(t) / ∂h is kept from the forward pass: it has the size of h. Else the
backward pass computes the logits again.

Some models scale and cap them, x = c·tanh(s·(W h + b) / c), whose derivative is s·(1 - (x / c)²). A token that was
sampled at temperature T has x / T in place of x, after scale and cap. If it was drawn from a part of the vocabulary,
the sums are over that part.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

_MAX_LOGITS = {"cpu": 2**23, "cuda": 2**27}
"""Largest number of float32 logits in memory, by kind of device: enough for an efficient matrix product."""
_MIN_TOKENS = 64
"""Smallest number of tokens computed at a time, also if `_MAX_LOGITS` is exceeded."""


_EXCLUDED = torch.finfo(torch.float32).min
"""Logit of a token outside the mask: its probability is 0, and 0 times it is 0, unlike 0 times -inf."""


class Mask(NamedTuple):
    """Vocabulary ids that each target was drawn from."""

    counts: Tensor
    """Number of ids of each target; 0: all of the vocabulary. Shape [tokens], int64, on the CPU."""
    ids: Tensor
    """Ids of all targets, concatenated. Shape [sum of counts], integers."""

    def apply(self, logits: Tensor, part: slice) -> None:
        """Exclude the other ids from the logits of some targets, in place: a few operations on the kept ones only."""
        counts = self.counts[part]
        start = int(self.counts[: part.start].sum())
        ids = self.ids[start : start + int(counts.sum())].long()
        rows = torch.repeat_interleave(counts).to(ids.device)
        left = logits[rows, ids]
        logits.index_fill_(0, counts.nonzero()[:, 0].to(ids.device), _EXCLUDED)
        logits[rows, ids] = left


@dataclass(frozen=True, slots=True)
class LogitTransform:
    """A model's transformation of its output layer's logits."""

    scale: float = 1.0
    """s: Cohere multiplies by its `logit_scale`, Granite divides by its `logits_scaling`."""
    cap: float | None = None
    """c: Gemma 2's `final_logit_softcapping`; None: no cap."""

    @classmethod
    def of(cls, config: Any) -> Self:
        """Return the transformation of a Hugging Face configuration."""
        scale, divisor = getattr(config, "logit_scale", None), getattr(config, "logits_scaling", None)
        return cls((scale or 1.0) / (divisor or 1.0), getattr(config, "final_logit_softcapping", None))

    def apply(self, logits: Tensor) -> Tensor:
        """Scale and cap in place."""
        if self.scale != 1.0:
            logits.mul_(self.scale)
        return logits if self.cap is None else logits.div_(self.cap).tanh_().mul_(self.cap)

    def derivative(self, logits: Tensor) -> Tensor | float:
        """Return the derivative of `apply` by its input, from its output."""
        return self.scale if self.cap is None else (logits / self.cap).square_().neg_().add_(1.0).mul_(self.scale)


PLAIN = LogitTransform()


def chosen_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    transform: LogitTransform = PLAIN,
    temperatures: Tensor | None = None,
    mask: Mask | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each target, and the entropy of its distribution in nats (without gradient).

    Args:
        hidden: h, shape [tokens, size].
        weight: W, shape [vocabulary, size].
        bias: b, shape [vocabulary].
        targets: t, shape [tokens], int64.
        transform: s and c.
        temperatures: T of each target, shape [tokens], float32; None: all 1.
        mask: ids that each target was drawn from, itself among them; None: all of the vocabulary.

    Returns:
        Both of shape [tokens], float32.
    """
    result: tuple[Tensor, Tensor] = _Chosen.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, transform, temperatures, mask
    )
    return result


class _Chosen(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        transform: LogitTransform,
        temperatures: Tensor | None,
        mask: Mask | None,
    ) -> tuple[Tensor, Tensor]:
        lowered = _lowered(hidden), _lowered(weight)
        logprobs, entropy, z = (torch.empty(targets.shape, dtype=torch.float32, device=hidden.device) for _ in range(3))
        ctx.is_frozen = ctx.needs_input_grad[:3] == (True, False, False)
        of_hidden = torch.empty_like(lowered[0]) if ctx.is_frozen else None
        for part in _parts(hidden, weight):
            logits = transform.apply(_logits(lowered[0][part], lowered[1], bias))
            slope = transform.derivative(logits) if ctx.is_frozen else 1.0
            if temperatures is not None:
                logits.div_(temperatures[part, None])
            if mask is not None:
                mask.apply(logits, part)
            z[part] = logits.logsumexp(-1)
            logprobs[part] = logits.gather(1, targets[part, None])[:, 0] - z[part]
            p = (logits - z[part, None]).exp_()
            entropy[part] = z[part] - torch.linalg.vecdot(p, logits)
            if of_hidden is not None:
                p.scatter_add_(1, targets[part, None], p.new_full((p.shape[0], 1), -1.0))
                slope = slope if temperatures is None else slope / temperatures[part, None]
                of_hidden[part] = p.mul_(-slope).to(of_hidden.dtype) @ lowered[1]
        if of_hidden is None:
            ctx.save_for_backward(*lowered, bias, targets, z, temperatures)
        else:
            ctx.save_for_backward(of_hidden)
        ctx.mark_non_differentiable(entropy)
        ctx.dtypes, ctx.transform, ctx.mask = (hidden.dtype, weight.dtype), transform, mask
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None, None, None, None]:
        if ctx.is_frozen:
            return (ctx.saved_tensors[0] * grads[0][:, None]).to(ctx.dtypes[0]), None, None, None, None, None, None
        hidden, weight, bias, targets, z, temperatures = ctx.saved_tensors
        transform: LogitTransform = ctx.transform
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        of_bias = None if bias is None else torch.zeros_like(of_weight[:, 0])
        for part in _parts(hidden, weight):
            logits, slope = transform.apply(_logits(hidden[part], weight, bias)), grads[0][part, None]
            derivative = None if transform == PLAIN else transform.derivative(logits)
            if temperatures is not None:
                logits, slope = logits.div_(temperatures[part, None]), slope / temperatures[part, None]
            if ctx.mask is not None:
                ctx.mask.apply(logits, part)
            grad = (logits - z[part, None]).exp_().mul_(-slope)
            grad.scatter_add_(1, targets[part, None], slope)
            if derivative is not None:
                grad *= derivative
            if of_bias is not None:
                of_bias += grad.sum(0)
            lowered = grad.to(hidden.dtype)
            of_hidden[part] = lowered @ weight
            of_weight += _product(lowered.T, hidden[part])
        return of_hidden.to(ctx.dtypes[0]), of_weight.to(ctx.dtypes[1]), of_bias, None, None, None, None


def _parts(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    tokens = max(_MIN_TOKENS, _MAX_LOGITS[hidden.device.type] // weight.shape[0])
    for start in range(0, hidden.shape[0], tokens):
        yield slice(start, start + tokens)


def _lowered(tensor: Tensor) -> Tensor:
    """Keep or convert to bfloat16 on a GPU that computes in it, else use float32; products still sum in float32."""
    if tensor.is_cuda and torch.is_autocast_enabled("cuda"):
        return tensor.to(torch.get_autocast_dtype("cuda"))
    if tensor.is_cuda and tensor.dtype == torch.bfloat16:
        return tensor
    return tensor.float()


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = _product(hidden, weight.T)
    return logits if bias is None else logits.add_(bias)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product in float32, for factors of any precision."""
    return a @ b if a.dtype == torch.float32 else torch.mm(a, b, out_dtype=torch.float32)
