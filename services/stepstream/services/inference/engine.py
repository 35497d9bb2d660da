"""What an engine is: token ids in, token ids out, and weights that change while it serves.

Two implementations, `torch_engine` and `vllm_engine`, keep this contract; one test suite holds both to it:

- every token carries its behaviour logprob, under the very distribution that it was sampled from (after
  temperature and top_p; for a greedy token, temperature 1), and the version of the weights that produced it;
- `load` swaps the weights between two tokens: no request fails, and one that is under way goes on with the new
  weights and a context computed by them, as if it had been sent afresh;
- after `load` the engine answers as a freshly started one would.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

FinishReason = Literal["stop", "length"]


class EngineError(Exception):
    """The engine cannot go on; the message says why."""


class BadPromptError(ValueError):
    """The prompt is empty, too long for the model, or holds an unknown token id."""


class NoValueError(Exception):
    """This engine, or its model, cannot give the value of a context; the message says why."""


class CheckpointRefusedError(Exception):
    """The checkpoint cannot be served; the message says why. The engine keeps the version it has."""


class Stops(Protocol):
    """Strings that end one response."""

    @property
    def strings(self) -> Sequence[str]:
        """The strings."""
        ...

    def ended(self, token: int) -> bool:
        """Whether the response has one of them, now that it has this token too; asked of every token in order."""
        ...


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one response is sampled."""

    max_tokens: int
    temperature: float = 1.0
    """0: greedy."""
    top_p: float = 1.0
    """The smallest set of tokens with this share of the probability, renormalised."""
    seed: int | None = None
    """The same seed, prompt and weights give the same response."""
    stream: bool = False
    """Whether chunks are wanted as they are made; otherwise the whole response is one."""
    stops: Stops | None = None
    """For this response alone."""


class VersionSpan(NamedTuple):
    """Response tokens [start, end) were sampled by the weights of this version."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Some tokens of a response, in order."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    """Behaviour logprobs in nats, one a token."""
    finish_reason: FinishReason | None = None
    """Why the response ended; of its last chunk only."""
    versions: Sequence[VersionSpan] = ()
    """Which version sampled which tokens of the whole response; of its last chunk only."""


class Engine(ABC):
    """Generates from one model at a time; made and used on one event loop."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
        """Gets the reason if the engine breaks down for good; it then has to be made anew."""

    @property
    @abstractmethod
    def version(self) -> int | None:
        """Version of the weights that sample the next token; none before the first `load`."""

    @abstractmethod
    async def load(self, folder: Path, version: int) -> None:
        """Serve the checkpoint in `folder` from the next token on.

        Raises:
            CheckpointRefusedError: it is not a checkpoint that this engine can run.
            EngineError: the engine has failed.
        """

    @abstractmethod
    def generate(self, prompt_ids: Sequence[int], params: SamplingParams) -> AsyncGenerator[TokenChunk, None]:
        """The response, ended by the model's end-of-turn token, by a stop string (both are part of it) or by a length.

        Leaving the generator early frees what the request holds.

        Raises:
            BadPromptError: see there.
            EngineError: the engine has failed.
        """

    async def score(self, prompts: Sequence[Sequence[int]], tokens: tuple[int, int] | None) -> tuple[list[float], int]:
        """The value of each whole context, from 0 to 1, and the version of the weights that gave all of them.

        Args:
            prompts: at least one.
            tokens: the value is the probability of the first against the second as the next token; None: the model has
                a head of its own for it.

        Raises:
            NoValueError: this engine or model cannot.
            BadPromptError: see there.
            EngineError: the engine has failed.
        """
        raise NoValueError("this engine gives no values: serve the model with the torch engine")

    @abstractmethod
    async def close(self) -> None:
        """Stop, and free everything; requests under way fail with EngineError."""

    def _break_down(self, error: EngineError) -> None:
        if not self.failed.done():
            self.failed.set_result(error)
