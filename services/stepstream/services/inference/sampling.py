"""Sample a token for every row of a batch, with its logprob.

As in vLLM: biases and penalties change the logits, then the temperature divides them, then `min_p`, `top_k` and `top_p`
remove tokens in this order, each from the distribution that the one before left.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stepstream.services.inference.engine import SamplingParams


class Context(NamedTuple):
    """The tokens of one row so far, which its penalties count."""

    prompt: Sequence[int]
    response: Sequence[int]


def sample(
    logits: Tensor,
    params: Sequence[SamplingParams],
    uniforms: Sequence[float],
    contexts: Sequence[Context] = (),
) -> tuple[list[int], list[float], list[Sequence[int]]]:
    """Return one token a row, its logprob in nats under the distribution that it was drawn from, and its mask.

    A mask has the ids that were left to draw from; it is empty if that are all ids, or more than the row's `mask_ids`.

    `logits` is [N, V]; `uniforms` has a number in [0, 1) a row, which decides the draw by inversion. So a row's token
    depends on its own logits and number only, never on the rest of the batch. A row of temperature 0 takes the
    likeliest token, with its logprob at temperature 1. `contexts`: one a row; may be empty if no row has penalties.
    """
    if any(row.changes_logits for row in params):
        logits = _changed(logits, params, contexts)
    temperatures = [row.temperature or 1.0 for row in params]
    if any(temperature != 1.0 for temperature in temperatures):
        logits = logits / torch.tensor(temperatures, device=logits.device)[:, None]
    if any(row.truncates for row in params):
        logits = _truncated(logits, params)
    logprobs = logits.log_softmax(-1)
    cumulative = logprobs.double().exp_().cumsum(-1)
    targets = torch.tensor(uniforms, dtype=torch.double, device=logits.device)[:, None] * cumulative[:, -1:]
    tokens = (cumulative <= targets).sum(-1).clamp_(max=logits.shape[-1] - 1)
    if not all(row.temperature for row in params):
        greedy = torch.tensor([not row.temperature for row in params], device=logits.device)
        tokens = torch.where(greedy, logprobs.argmax(-1), tokens)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    return tokens.tolist(), chosen.tolist(), [_mask(logits, index, row) for index, row in enumerate(params)]


def _mask(logits: Tensor, index: int, row: SamplingParams) -> Sequence[int]:
    """Return the ids that are left in one row of truncated `logits` [N, V]; empty: see `sample`."""
    if not (row.mask_ids and row.truncates):
        return ()
    ids: list[int] = logits[index].isfinite().nonzero()[:, 0].tolist()
    return ids if len(ids) <= row.mask_ids else ()


def _changed(logits: Tensor, params: Sequence[SamplingParams], contexts: Sequence[Context]) -> Tensor:
    """Return `logits` [N, V] with each row's biases and penalties."""
    logits = logits.clone()
    for index, row in enumerate(params):
        if not row.changes_logits:
            continue
        own = logits[index]  # a view, [V]
        for token, bias in row.logit_bias:
            own[token] += bias
        prompt, response = contexts[index] if contexts else Context((), ())
        if row.repetition_penalty != 1.0:
            seen = torch.tensor(sorted({*prompt, *response}), dtype=torch.long, device=own.device)
            values = own[seen]
            own[seen] = torch.where(values > 0, values / row.repetition_penalty, values * row.repetition_penalty)
        if row.presence_penalty or row.frequency_penalty:
            used = torch.tensor(list(response), dtype=torch.long, device=own.device)
            counts = torch.bincount(used, minlength=len(own)).to(own.dtype)
            own -= row.frequency_penalty * counts + row.presence_penalty * (counts > 0)
    return logits


def _truncated(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Return `logits` [N, V] with -inf for the tokens that each row must not sample."""
    vocabulary = logits.shape[-1]

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, device=logits.device)[:, None]

    top_p = column([row.top_p if row.truncates else 1.0 for row in params])
    top_k = column([row.top_k if row.truncates and row.top_k else vocabulary for row in params])
    min_p = column([row.min_p if row.truncates else 0.0 for row in params])
    ordered, order = logits.sort(-1, descending=True)
    beyond = ordered < ordered[:, :1] + min_p.log()
    beyond |= torch.arange(vocabulary, device=logits.device) >= top_k
    shares = ordered.masked_fill(beyond, float("-inf")).softmax(-1)
    beyond |= (shares.cumsum(-1) - shares >= top_p) & (top_p < 1.0)
    beyond[:, 0] = False
    return torch.empty_like(logits).scatter_(1, order, ordered.masked_fill(beyond, float("-inf")))
