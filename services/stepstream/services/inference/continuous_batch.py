"""Batch continuously: sequences join and leave between two decoding steps of one running batch.

The used rows of the cache are always the first ones: a joining sequence takes the next row, and the last row moves into
the place of one that leaves. Weights change between two steps. The batch then recomputes the contexts of running
sequences, so the labelled version alone produced each token.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from stepstream.services.inference.engine import (
    FinishReason,
    NoValueError,
    SamplingMask,
    SamplingParams,
    TokenChunk,
    VersionSpan,
)
from stepstream.services.inference.llama import Llama, LlamaWeights
from stepstream.services.inference.sampling import Context, sample

_PREFILL_TOKENS = 4096  # limit of prompt tokens, with padding, computed at once: bounds the delay of running rows


@dataclass(slots=True, eq=False)
class Generation:
    """One response in progress; `emit` gets its chunks on the batch's thread."""

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
    mask: SamplingMask | None = field(init=False)

    def __post_init__(self) -> None:
        self.mask = SamplingMask([], []) if self.params.mask_ids else None
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
        """Replace the weights, and recompute the contexts of running sequences."""
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
        """Sample one token for every running sequence."""
        if not self._rows:
            return
        positions = [len(row.tokens) - 1 for row in self._rows]
        last = torch.tensor([row.tokens[-1] for row in self._rows], device=self._llama.device)
        at = torch.tensor(positions, device=self._llama.device)
        logits = self._llama.decode(last, at, max(positions) + 1)
        self._sample(self._rows, logits)
        self._drop_finished()

    def score(self, prompts: Sequence[Sequence[int]], tokens: tuple[int, int] | None) -> list[float]:
        """Return the value of each prompt, from 0 to 1, computed in free rows of the cache.

        Args:
            prompts: whole contexts, already validated.
            tokens: the value is the probability of the first against the second as the next token, σ of the difference
                of their logits; None: σ of the output of the model's own value head.

        Raises:
            NoValueError: the model has no value head.
        """
        head = self._llama.weights.value_head
        if tokens is None:
            if head is None:
                raise NoValueError("the served model has no value head: set 'head' to tokens")
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
            padded, last = _padded(group, self._llama.device)
            values += (self._llama.read(start, padded, last) @ head.T)[:, 0].sigmoid().tolist()
        return values

    def remove(self, cancelled: set[Generation]) -> None:
        """Remove sequences whose callers closed the generator."""
        for row in cancelled:
            row.room = 0
        self._drop_finished()

    def _portions(self, rows: list[Generation]) -> list[tuple[int, list[Generation]]]:
        """Return runs of adjacent rows whose padded prompts fit into one computation, each with its first index."""
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
        padded, last = _padded(prompts, self._llama.device)
        return self._llama.prefill(first_row, padded, last)

    def _sample(self, rows: list[Generation], logits: torch.Tensor) -> None:
        params, uniforms = [row.params for row in rows], [row.draw() for row in rows]
        changed = any(each.changes_logits for each in params)
        contexts = [Context(row.prompt, row.tokens[len(row.prompt) :]) for row in rows] if changed else ()
        tokens, logprobs, masks = sample(logits, params, uniforms, contexts)
        end_tokens = self._llama.shape.end_tokens
        for row, token, logprob, mask in zip(rows, tokens, logprobs, masks, strict=True):
            row.tokens.append(token)
            row.new_tokens.append(token)
            row.new_logprobs.append(logprob)
            if row.mask is not None:
                row.mask.append(mask)
            row.room -= 1
            if token in end_tokens or (row.params.stops is not None and row.params.stops.is_stopped_by(token)):
                row.room = 0
                self._flush(row, "stop")
            elif row.room == 0:
                self._flush(row, "length")
            elif row.params.stream:
                self._flush(row, None)

    def _flush(self, row: Generation, reason: FinishReason | None) -> None:
        if reason is not None:
            self._end_span(row)
        whole = (row.spans, row.mask) if reason else ((), None)
        row.emit(TokenChunk(row.new_tokens, row.new_logprobs, reason, *whole))
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


def _padded(prompts: Sequence[list[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return prompts padded on the right, [N, L], and the index of each one's last token, [N]."""
    longest = max(map(len, prompts))
    padded = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts], device=device)
    return padded, torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
