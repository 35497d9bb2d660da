"""A response in the tokens that were sampled. Pure."""

from array import array
from collections.abc import Iterable
from typing import Any

from stepstream.topics.events import PolicySpan, new_policy_span


class Tokens:
    """A sampled response in tokens, with the whole prompt's: lists, arrays or tensors of numbers."""

    def __init__(self, prompt: Iterable[int], response: Iterable[int], logprobs: Iterable[float], version: int) -> None:
        """Raises ValueError, TypeError or OverflowError for what is none."""
        self.prompt, self.response = _numbers("i", prompt), _numbers("i", response)
        self.logprobs = _numbers("d", logprobs)
        self.version = version
        if not self.response or len(self.response) != len(self.logprobs) or version < 0:
            raise ValueError(f"{len(self.response)} tokens, {len(self.logprobs)} logprobs, version {version}")

    def spans(self, model: str) -> list[PolicySpan]:
        """All of the response was sampled by one version."""
        return [new_policy_span(start=0, end=len(self.response), model=model, version=self.version)]


def _numbers(code: str, values: Any) -> list[Any]:
    """Python's numbers of any kind that `array` has a code for."""
    tolist = getattr(values, "tolist", None)
    return array(code, tolist() if callable(tolist) else values).tolist()
