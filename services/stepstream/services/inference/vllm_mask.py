"""Read sampling masks off the logprobs of the likeliest tokens, which vLLM returns after truncation and grammar.

An excluded token has the logprob -inf there. So if vLLM returns one token more than a mask may have, either one of them
is excluded, and the others are all that were left; or more were left than the mask may have. `--return-sampling-mask`
needs the GPU's second model runner, a top-k in every request, and refuses greedy ones.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from stepstream.services.inference.engine import SamplingMask


@dataclass(frozen=True, slots=True)
class MaskReader:
    """Reads the masks of one request."""

    most_ids: int
    """Largest number of ids of a token's mask."""
    requested: int
    """Number of likeliest tokens whose logprobs vLLM returns."""
    answered: int | None
    """Number of them that the caller asked for."""

    @classmethod
    def of(cls, request: Any, most_ids: int, most_logprobs: int) -> Self | None:
        """Let vLLM return enough logprobs for a `ChatCompletionRequest`; None: it gets no mask.

        Args:
            request: the request; its `top_logprobs` changes.
            most_ids: largest number of ids of a token's mask; 0: none is requested.
            most_logprobs: vLLM's limit.
        """
        answered = request.top_logprobs
        if not most_ids or not request.logprobs or answered == -1:
            return None
        requested = max(answered or 0, min(most_ids + 1, most_logprobs))
        request.top_logprobs = requested
        return cls(most_ids, requested, answered)

    def add(self, mask: SamplingMask, positions: Iterable[Mapping[int, Any] | None]) -> None:
        """Append the ids of some tokens to a mask: those with a finite logprob, none if there may be more."""
        for logprobs in positions:
            ids = sorted(token for token, each in (logprobs or {}).items() if each.logprob > -math.inf)
            mask.append(ids if len(ids) < self.requested and len(ids) <= self.most_ids else ())
