"""Continuous batching: sequences join and leave between two decoding steps of one running batch.

The rows of the cache that are in use are always the first ones: a sequence that joins takes the next row, and
when one leaves, the last takes its place. Weights change between two steps; the contexts of running sequences
are then computed anew, so every token is exactly of the version that it is labelled with.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from stepstream.services.inference.engine import FinishReason, NoValueError, SamplingParams, TokenChunk, VersionSpan
from stepstream.services.inference.llama import Llama, LlamaWeights
from stepstream.services.inference.sampling import sample

_PREFILL_TOKENS = 4096  # most prompt tokens, padding included, computed at once: bounds the wait of running rows


@dataclass(slots=True, eq=False)
class Generation:
    """One response in the making; `emit` gets its chunks, on the batch's thread."""

    prompt: Sequence[int]
    params: SamplingParams
    emit: Callable[[TokenChunk], None]
    draw: Callable[[], float] = field(init=False)
    tokens: list[int] = field(init=False)
    room: int = 0
    """Tokens that may still be sampled."""
    spans: list[VersionSpan] = field(default_factory=list)
    new_tokens: list[int] = field(default_factory=list)
    new_logprobs: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.params.seed).random
        self.tokens = list(self.prompt)


class Batch:
    """The running sequences of one model; not thread-safe: one thread steps it."""

    def __init__(self, weights: LlamaWeights, version: int, rows: int, length: int) -> None:
        self._llama = Llama(weights, rows, length)
        self._capacity = rows
        self._rows: list[Generation] = []
        self.version = version

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._rows)

    @property
    def free(self) -> int:
        """Sequences that may join."""
        return self._capacity - len(self._rows)

    def swap(self, weights: LlamaWeights, version: int) -> None:
        """Exchange the weights, and compute the contexts of running sequences with them."""
        for row in self._rows:
            self._end_span(row)
        self._llama.weights = weights
        self.version = version
        for first, group in self._portions(self._rows):
            self._prefill(first, [row.tokens[:-1] for row in group])

    def join(self, sequences: list[Generation]) -> None:
        """Compute the prompts of at most `free` sequences and sample their first tokens."""
        start = len(self._rows)
        for sequence in sequences:
            sequence.room = min(sequence.params.max_tokens, self._llama.length - len(sequence.prompt))
        self._rows += sequences
        for first, group in self._portions(sequences):
            self._sample(group, self._prefill(start + first, [row.tokens for row in group]))
        self._drop_finished()

    def step(self) -> None:
        """One token for every running sequence."""
        if not self._rows:
            return
        positions = [len(row.tokens) - 1 for row in self._rows]
        last = torch.tensor([row.tokens[-1] for row in self._rows])
        logits = self._llama.decode(last, torch.tensor(positions), max(positions) + 1)
        self._sample(self._rows, logits)
        self._drop_finished()

    def score(self, prompts: Sequence[Sequence[int]], tokens: tuple[int, int] | None) -> list[float]:
        """The value of each prompt, from 0 to 1, computed in rows that are free; nothing of them stays.

        Args:
            prompts: whole contexts, checked.
            tokens: the value is the probability of the first against the second as the next token, σ of the difference
                of their logits; None: the model's own head gives it, as σ of what it says.

        Raises:
            NoValueError: the model has no such head.
        """
        head = self._llama.weights.value_head
        if tokens is None:
            if head is None:
                raise NoValueError("the model that is served has no head for values: ask by tokens")
        else:
            rows = self._llama.weights.head[list(tokens)]
            head = rows[:1] - rows[1:]
        values: list[float] = []
        start, waiting = len(self._rows), [list(prompt) for prompt in prompts]
        while waiting:
            count, longest = 0, 0
            for prompt in waiting[: self.free]:
                longest = max(longest, len(prompt))
                if count and longest * (count + 1) > _PREFILL_TOKENS:
                    break
                count += 1
            group, waiting = waiting[:count], waiting[count:]
            padded, last = _padded(group)
            values += (self._llama.read(start, padded, last) @ head.T)[:, 0].sigmoid().tolist()
        return values

    def leave(self, gone: set[Generation]) -> None:
        """Drop sequences whose callers have left."""
        for row in gone:
            row.room = 0
        self._drop_finished()

    def _portions(self, rows: list[Generation]) -> list[tuple[int, list[Generation]]]:
        """Runs of neighbours, with the index of the first, whose padded prompts fit into one computation."""
        portions: list[tuple[int, list[Generation]]] = []
        longest = 0
        for index, row in enumerate(rows):
            longest = max(longest, len(row.tokens))
            if portions and longest * (len(portions[-1][1]) + 1) <= _PREFILL_TOKENS:
                portions[-1][1].append(row)
            else:
                portions.append((index, [row]))
                longest = len(row.tokens)
        return portions

    def _prefill(self, first_row: int, prompts: list[list[int]]) -> torch.Tensor:
        padded, last = _padded(prompts)
        return self._llama.prefill(first_row, padded, last)

    def _sample(self, rows: list[Generation], logits: torch.Tensor) -> None:
        tokens, logprobs = sample(logits, [row.params for row in rows], [row.draw() for row in rows])
        end_tokens = self._llama.shape.end_tokens
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            row.tokens.append(token)
            row.new_tokens.append(token)
            row.new_logprobs.append(logprob)
            row.room -= 1
            if token in end_tokens or (row.params.stops is not None and row.params.stops.ended(token)):
                row.room = 0
                self._flush(row, "stop")
            elif row.room == 0:
                self._flush(row, "length")
            elif row.params.stream:
                self._flush(row, None)

    def _flush(self, row: Generation, reason: FinishReason | None) -> None:
        if reason is not None:
            self._end_span(row)
        row.emit(TokenChunk(row.new_tokens, row.new_logprobs, reason, row.spans if reason else ()))
        row.new_tokens, row.new_logprobs = [], []

    def _end_span(self, row: Generation) -> None:
        start = row.spans[-1].end if row.spans else 0
        end = len(row.tokens) - len(row.prompt)
        if end > start:
            row.spans.append(VersionSpan(self.version, start, end))

    def _drop_finished(self) -> None:
        index = 0
        while index < len(self._rows):
            if self._rows[index].room > 0:
                index += 1
                continue
            last = self._rows.pop()
            if index < len(self._rows):
                self._rows[index] = last
                self._llama.cache.move(len(self._rows), index, len(last.tokens))


def _padded(prompts: Sequence[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts as [N, L], padded on the right, and where each one ends, [N]."""
    longest = max(map(len, prompts))
    padded = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
    return padded, torch.tensor([len(prompt) - 1 for prompt in prompts])
