"""The tokens of an answer, where every one is certain. Nothing is ever tokenised again from text. Pure."""

import math
import struct
from dataclasses import dataclass
from typing import Any

from stepstream.services.gateway import tokens
from stepstream.services.gateway.protocols.base import Answer
from stepstream.topics.events import PolicySpan, new_policy_span

_ROUNDED = 1e-4
"""How far above 0 rounding may put a logprob."""


@dataclass(slots=True)
class Captured:
    """The sampled response and its prompt; `prompt` and `response` are packed."""

    prompt: bytes
    prompt_ids: list[int]
    response: bytes
    response_ids: list[int]
    logprobs: list[float]
    spans: list[PolicySpan]


def captured(answer: Answer, model: str) -> Captured | None:
    """The tokens, or None unless every one came with its id, and those of the response with logprob and version."""
    prompt, response, logprobs = answer.prompt_token_ids, answer.token_ids, answer.logprobs
    if answer.error is not None or not prompt or not response or not logprobs:
        return None
    try:
        if len(logprobs) != len(response) or not math.isfinite(sum(logprobs)) or max(logprobs) > _ROUNDED:
            return None
        if min(prompt) < 0 or min(response) < 0:
            return None
        spans = policy_spans(answer.weight_versions, len(response), model)
        if spans is None:
            return None
        return Captured(tokens.pack(prompt), prompt, tokens.pack(response), response, logprobs, spans)
    except (TypeError, ValueError, OverflowError, struct.error):
        return None


def policy_spans(weight_versions: Any, count: int, model: str) -> list[PolicySpan] | None:
    """The versions of a response's `count` tokens.

    Returns:
        None where what the upstream tells does not cover them in order without gaps: a token of unknown version.
    """
    spans = []
    position = 0
    try:
        for span in weight_versions:
            start, end, version = span["start"], span["end"], span["version"]
            if start != position or end < start or int(version) < 0:
                return None
            if end > start:
                spans.append(new_policy_span(start=start, end=end, model=model, version=int(version)))
            position = end
    except (TypeError, KeyError, ValueError):
        return None
    return spans if position == count else None
