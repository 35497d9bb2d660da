"""Sample a token for every row of a batch, with its logprob."""

from collections.abc import Sequence

import torch
from torch import Tensor

from stepstream.services.inference.engine import SamplingParams


def sample(
    logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Return one token a row, and its logprob in nats under the distribution that it was drawn from.

    `logits` is [N, V]; `uniforms` has a number in [0, 1) a row, which decides the draw by inversion. So a row's token
    depends on its own logits and number only, never on the rest of the batch. A row of temperature 0 takes the
    likeliest token, with its logprob at temperature 1.
    """
    temperatures = [row.temperature or 1.0 for row in params]
    if any(temperature != 1.0 for temperature in temperatures):
        logits = logits / torch.tensor(temperatures)[:, None]
    if any(row.top_p < 1.0 and row.temperature for row in params):
        logits = _nucleus(logits, torch.tensor([row.top_p if row.temperature else 1.0 for row in params]))
    logprobs = logits.log_softmax(-1)
    cumulative = logprobs.double().exp_().cumsum(-1)
    targets = torch.tensor(uniforms, dtype=torch.double)[:, None] * cumulative[:, -1:]
    tokens = (cumulative <= targets).sum(-1).clamp_(max=logits.shape[-1] - 1)
    if not all(row.temperature for row in params):
        greedy = torch.tensor([not row.temperature for row in params])
        tokens = torch.where(greedy, logprobs.argmax(-1), tokens)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    return tokens.tolist(), chosen.tolist()


def _nucleus(logits: Tensor, top_p: Tensor) -> Tensor:
    """Return `logits` [N, V] with -inf outside each row's smallest set of tokens of share `top_p` [N]."""
    ordered, order = logits.sort(-1, descending=True)
    shares = ordered.softmax(-1)
    beyond = shares.cumsum(-1) - shares >= top_p[:, None]
    beyond[:, 0] = False
    return torch.empty_like(logits).scatter_(1, order, ordered.masked_fill(beyond, float("-inf")))
