"""Define an engine: token ids in, token ids out, and weights that change while it serves.

One test suite checks both implementations, `torch_engine` and `vllm_engine`:

- every token has its behaviour logprob and the version of the weights that sampled it. The logprob is under the
  distribution that was sampled from: after biases, penalties, temperature and truncation; at temperature 1 and
  without truncation for a greedy token;
- `load` swaps the weights between two tokens. No request fails: a running one continues with the new weights and a
  context that they computed, as if it had just been sent;
- after `load` the engine answers like a newly started one.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

FinishReason = Literal["stop", "length"]


class EngineError(Exception):
    """The engine failed for good; the message has the reason."""


class BadPromptError(ValueError):
    """The prompt is empty, too long for the model, or holds an unknown token id."""


class NoValueError(Exception):
    """This engine or its model computes no value of a context; the message has the reason."""


class CheckpointRefusedError(Exception):
    """The checkpoint cannot be served; the message has the reason. The engine keeps its current version."""


@contextmanager
def malformed_as_refused(folder: Path) -> Iterator[None]:
    """Raise what else fails in reading and checking a version as its refusal: any other error ends the worker."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise CheckpointRefusedError(f"{folder}: a file is malformed: {error!r}") from error
    except MemoryError as error:
        raise CheckpointRefusedError(f"{folder}: this machine's memory cannot hold it") from error


class StopCondition(Protocol):
    """Ends one response at a stop string."""

    @property
    def strings(self) -> Sequence[str]:
        """The stop strings."""
        ...

    def is_stopped_by(self, token: int) -> bool:
        """Add the response's next token; return True if its text now contains a stop string."""
        ...


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling of one response."""

    max_tokens: int
    temperature: float = 1.0
    """0: greedy."""
    top_p: float = 1.0
    """The smallest set of tokens with this share of the probability, renormalised; after `top_k` and `min_p`."""
    top_k: int = 0
    """Number of the likeliest tokens that may be sampled; 0: all."""
    min_p: float = 0.0
    """Smallest probability of a token, as a share of the likeliest token's; 0: none."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token that the response has."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit, for each time that the response has it."""
    repetition_penalty: float = 1.0
    """Divides the positive logits, and multiplies the negative ones, of tokens that prompt or response have."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids, each with the number that is added to its logit."""
    seed: int | None = None
    """The same seed, prompt and weights give the same response."""
    stream: bool = False
    """True: yield chunks as they are sampled; False: yield the whole response as one chunk."""
    stops: StopCondition | None = None
    """Stateful, for this response only; None: no stop strings."""
    mask_ids: int = 0
    """Largest number of ids in a token's sampling mask; 0: return no mask."""

    @property
    def changes_logits(self) -> bool:
        """True: biases or penalties change the logits."""
        return bool(
            self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0 or self.logit_bias
        )

    @property
    def truncates(self) -> bool:
        """True: some tokens cannot be sampled."""
        return bool(self.temperature and (self.top_p < 1.0 or self.top_k or self.min_p))


class VersionSpan(NamedTuple):
    """Response tokens [start, end) were sampled by the weights of this version."""

    version: int
    start: int
    end: int


class SamplingMask(NamedTuple):
    """Vocabulary ids that each token of a response was drawn from, after truncation or a grammar."""

    counts: list[int]
    """Number of ids of each token; 0: they are all ids, or more than were asked for."""
    token_ids: list[int]
    """Ids of all tokens, concatenated; those of one token rise."""

    def append(self, ids: Sequence[int]) -> None:
        """Append the next token's ids."""
        self.counts.append(len(ids))
        self.token_ids.extend(ids)


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Consecutive tokens of a response."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    """Behaviour logprobs in nats, one a token."""
    finish_reason: FinishReason | None = None
    """Why the response ended; None except in its last chunk."""
    versions: Sequence[VersionSpan] = ()
    """Versions of all the response's tokens; empty except in its last chunk."""
    mask: SamplingMask | None = None
    """Mask of all the response's tokens; None except in its last chunk, and if none was requested."""


class Engine(ABC):
    """Generates from one model at a time; create and use it on one event loop."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
        """Set to the error if the engine fails for good; then create a new engine."""

    @property
    @abstractmethod
    def version(self) -> int | None:
        """Version of the weights that sample the next token; None before the first `load`."""

    @abstractmethod
    async def load(self, folder: Path, version: int) -> None:
        """Serve the checkpoint in `folder` from the next token on.

        Raises:
            CheckpointRefusedError: this engine cannot run the checkpoint.
            EngineError: the engine has failed.
        """

    @abstractmethod
    def generate(self, prompt_ids: Sequence[int], params: SamplingParams) -> AsyncGenerator[TokenChunk, None]:
        """Yield the response up to the model's end-of-turn token, a stop string (both included) or a length limit.

        Closing the generator early frees the request's resources.

        Raises:
            BadPromptError: the prompt is empty, too long, or has an unknown token id.
            EngineError: the engine has failed.
        """

    async def score(self, prompts: Sequence[Sequence[int]], tokens: tuple[int, int] | None) -> tuple[list[float], int]:
        """Return the value of each whole context, from 0 to 1, and the version of the weights that computed them.

        Args:
            prompts: at least one.
            tokens: the value is the probability of the first against the second as the next token; None: the model's
                own value head computes it.

        Raises:
            NoValueError: this engine or model computes no values.
            BadPromptError: the prompt is empty, too long, or has an unknown token id.
            EngineError: the engine has failed.
        """
        raise NoValueError("this engine computes no values: serve the model with the torch engine")

    async def load_adapter(self, folder: Path, version: int) -> None:
        """Serve the adapters in `folder` (PEFT's layout) beside the loaded weights, by the name `served_name`.

        Raises:
            CheckpointRefusedError: this engine serves no adapters, or cannot serve these.
            EngineError: the engine has failed.
        """
        raise CheckpointRefusedError(f"{folder}: this engine serves no adapters; set inference.engine to vllm")

    async def unload_adapter(self, version: int) -> None:
        """Accept no new requests for the adapters of this version; running ones end with them."""
        raise CheckpointRefusedError(f"this engine serves no adapters, so none of version {version}")

    def served_name(self, version: int) -> str:
        """Return the name in a request's field `model` that selects this version; empty: it needs no other name."""
        return ""

    @abstractmethod
    async def close(self) -> None:
        """Stop and free everything; running requests fail with EngineError."""

    def _break_down(self, error: EngineError) -> None:
        if not self.failed.done():
            self.failed.set_result(error)
