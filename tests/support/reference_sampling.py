"""Compute the distribution that a response is sampled from, with transformers' own logits processors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from stepstream.services.inference.engine import SamplingParams
from stepstream.services.inference.sampling import Context


def reference_logprobs(logits: Tensor, params: SamplingParams, context: Context) -> list[float]:
    """Return the log-probability of each token of `logits` [1, V]; -inf: it cannot be sampled."""
    logits = logits.clone().double()
    for token, bias in params.logit_bias:
        logits[0, token] += bias
    seen = torch.tensor([[*context.prompt, *context.response]], dtype=torch.long)
    if params.repetition_penalty != 1.0 and seen.numel():
        logits = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(seen, logits)
    for token in set(context.response):
        count = list(context.response).count(token)
        logits[0, token] -= params.presence_penalty + params.frequency_penalty * count
    warpers: Any = LogitsProcessorList()
    if params.temperature:
        warpers.append(TemperatureLogitsWarper(params.temperature))
        if params.min_p:
            warpers.append(MinPLogitsWarper(params.min_p))
        if params.top_k:
            warpers.append(TopKLogitsWarper(params.top_k))
        if params.top_p < 1:
            warpers.append(TopPLogitsWarper(params.top_p))
    return [float(value) for value in warpers(seen, logits).log_softmax(-1)[0]]


def response_logprobs(
    logits: Tensor, prompt: Sequence[int], response: Sequence[int], params: SamplingParams
) -> list[float]:
    """Return the log-probabilities of a response's tokens; `logits` is [tokens, V], before each of them."""
    return [
        reference_logprobs(logits[at : at + 1], params, Context(prompt, response[:at]))[token]
        for at, token in enumerate(response)
    ]
