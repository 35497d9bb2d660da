"""Join a trajectory's steps into as few training sequences as their shared prefixes allow. Pure.

A step has only the new part of its prompt, and names the shared part by a step, a length and a digest: the steps form
a tree. There are three cases:

- the shared part is a whole sequence: the sequence grows;
- the shared part is the beginning of a sequence (an edited, compacted or branched context): a new sequence starts with
  the shared tokens, whose responses are trained on only in the first sequence;
- the shared part cannot be verified: the step is left out, because its tokens are unknown.

The cost is linear in the number of tokens: each context has its hash state, so no prefix is hashed
twice.
"""

import hashlib
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from stepstream.topics.encoded_array import EncodedArray, concatenate
from stepstream.topics.events import (
    SamplingMask,
    SequenceSpan,
    Step,
    TrainingSequence,
    new_sampling_mask,
    new_sequence_span,
    new_training_sequence,
)
from stepstream.topics.sampling_restrictions import MASKED, restriction_of
from stepstream.topics.step_contexts import is_empty_failure


@dataclass
class JoinedSequences:
    """Sequences, and the result for each step."""

    sequences: list[TrainingSequence] = field(default_factory=list)
    trainable: list[bool] = field(default_factory=list)
    """By step: True if its response is in the spans of a sequence."""
    faults: list[str] = field(default_factory=list)
    """Reasons for falling back to text, each once."""
    text: list[bool] = field(default_factory=list)
    """By step: True if it has no verified tokens."""


class _Tokens:
    """Tokens of a sequence, in the parts that the steps hold, so that encoded arrays stay encoded."""

    def __init__(self) -> None:
        self._parts: list[Sequence[int]] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def append(self, part: Sequence[int]) -> None:
        """Append a part."""
        if part:
            self._ends.append(len(self) + len(part))
            self._parts.append(part)

    def slice(self, start: int, end: int) -> list[int]:
        """Return the tokens from `start` to `end`; only the parts between them are decoded."""
        first, last = bisect_right(self._ends, start), bisect_left(self._ends, end) + 1
        if start >= end:
            return []
        offset = self._ends[first - 1] if first else 0
        tokens = [token for part in self._parts[first:last] for token in part]
        return tokens[start - offset : end - offset]

    def joined(self) -> list[int]:
        """Return all tokens, encoded if all parts are."""
        return cast(list[int], concatenate(self._parts))


@dataclass
class _Sequence:
    """A sequence that grows."""

    tokens: _Tokens = field(default_factory=_Tokens)
    spans: list[SequenceSpan] = field(default_factory=list)
    logprobs: list[Sequence[float]] = field(default_factory=list)
    """Logprobs of each span."""
    masks: list[SamplingMask] = field(default_factory=list)
    """Sampling mask of each span."""


@dataclass
class _Context:
    """Whole prompt and response of a step: the first `end` tokens of a sequence that only grows."""

    sequence: _Sequence
    end: int
    hashed: "hashlib._Hash"
    """SHA-256 state over them as little-endian int32, except `unhashed`."""
    unhashed: list[Sequence[int]]
    """Their last parts. A context that no step continues is never hashed."""
    before: "_Context | None"
    """Context that this one continues, for a prefix that ends inside it."""

    def hash_state(self) -> "hashlib._Hash":
        """Return a copy of the state over all its tokens."""
        self.hashed.update(_packed(concatenate(self.unhashed)))
        self.unhashed = []
        return self.hashed.copy()


def join_sequences(steps: Sequence[Step]) -> JoinedSequences:
    """Join steps into training sequences.

    Args:
        steps: the trajectory's steps in order of their index; gaps are allowed.
    """
    joined = JoinedSequences()
    sequences: list[_Sequence] = []
    contexts: dict[int, _Context] = {}
    for step in steps:
        parent_index = step["prompt_shared_step"]
        before = contexts.get(step["step_index"] - 1 if parent_index is None else parent_index)
        hashed, fault = _verify_prefix(step, before)
        if fault and fault not in joined.faults and not is_empty_failure(step):
            joined.faults.append(fault)
        joined.text.append(hashed is None)
        if hashed is None:
            joined.trainable.append(False)
            continue
        context = _append_step(step, before, hashed, sequences)
        contexts[step["step_index"]] = context
        sequence, start = context.sequence, context.end - len(step["response_token_ids"])
        spans = _spans(step, start) if _may_train(step) else []
        for span in spans:
            first, last = span["start"] - start, span["end"] - start
            sequence.spans.append(span)
            sequence.logprobs.append(_part(step["response_logprobs"], first, last))
            sequence.masks.append(_mask_part(step, span["restriction"], first, last))
        joined.trainable.append(bool(spans))
    joined.sequences = [_finished(sequence) for sequence in sequences if sequence.spans]
    return joined


def _verify_prefix(step: Step, before: _Context | None) -> tuple["hashlib._Hash | None", str]:
    """Return the hash state over the shared part, or None and the reason."""
    if step["fidelity"] != "token":
        return None, f"fidelity:{step['fidelity']}"
    shared = step["prompt_shared_tokens"]
    if shared == 0:
        return hashlib.sha256(), ""
    if before is None:
        return None, "prefix:missing"
    if shared > before.end:
        return None, "prefix:mismatch"
    hashed = _hash_of(before, shared)
    return (hashed, "") if hashed.hexdigest() == step["prompt_shared_digest"] else (None, "prefix:mismatch")


def _hash_of(context: _Context, length: int) -> "hashlib._Hash":
    """Return the hash state over the first `length` tokens, continued from the longest context inside them."""
    below = _longest_context_within(context, length)
    hashed, start = (hashlib.sha256(), 0) if below is None else (below.hash_state(), below.end)
    hashed.update(_packed(context.sequence.tokens.slice(start, length)))
    return hashed


def _append_step(step: Step, before: _Context | None, hashed: "hashlib._Hash", sequences: list[_Sequence]) -> _Context:
    """Append a verified step to the sequence that ends with its shared part, or to a new sequence."""
    shared, prompt = step["prompt_shared_tokens"], step["prompt_token_ids"]
    sequence = None
    rest: list[int] = []
    if before is not None and len(before.sequence.tokens) == before.end <= shared + len(prompt):
        # A producer may share less than possible: its prompt may repeat the rest of the sequence.
        rest = before.sequence.tokens.slice(shared, before.end)
        if not rest or prompt[: len(rest)] == rest:
            sequence = before.sequence
            prompt = prompt[len(rest) :] if rest else prompt
    if sequence is None:
        sequence, rest = _Sequence(), []
        if shared:
            assert before is not None
            sequence.tokens.append(before.sequence.tokens.slice(0, shared))
            before = _longest_context_within(before, shared)
        else:
            before = None
        sequences.append(sequence)
    new = [prompt, step["response_token_ids"]]
    for part in new:
        sequence.tokens.append(part)
    return _Context(sequence, len(sequence.tokens), hashed, [rest, *new], before)


def _finished(sequence: _Sequence) -> TrainingSequence:
    finished = new_training_sequence(token_ids=sequence.tokens.joined(), spans=sequence.spans)
    finished["logprobs"] = cast(list[float], concatenate(sequence.logprobs))
    if any(mask["token_ids"] for mask in sequence.masks):
        finished["sampling_mask"] = new_sampling_mask(
            counts=cast(list[int], concatenate([mask["counts"] for mask in sequence.masks])),
            token_ids=cast(list[int], concatenate([mask["token_ids"] for mask in sequence.masks])),
        )
    return finished


def _part(numbers: Sequence[Any], start: int, end: int) -> Sequence[Any]:
    return numbers.part(start, end) if isinstance(numbers, EncodedArray) else numbers[start:end]


def _mask_part(step: Step, restriction: str, start: int, end: int) -> SamplingMask:
    """Return the sampling mask of a part of a response; without ids if it defines no ratios."""
    mask = step["sampling_mask"]
    if mask is None or (restriction and restriction not in MASKED):
        return {"counts": [0] * (end - start), "token_ids": []}
    counts = list(mask["counts"])
    first, size = sum(counts[:start]), sum(counts[start:end])
    return {
        "counts": counts[start:end],
        "token_ids": cast(list[int], _part(mask["token_ids"], first, first + size)),
    }


def _longest_context_within(context: _Context | None, length: int) -> _Context | None:
    """Return the longest ancestor that lies inside the first `length` tokens."""
    while context is not None and context.end > length:
        context = context.before
    return context


def _packed(tokens: Sequence[int]) -> bytes:
    return tokens.int32() if isinstance(tokens, EncodedArray) else struct.pack(f"<{len(tokens)}i", *tokens)


def _may_train(step: Step) -> bool:
    governed = step["governed"]
    return step["consent"] == "train" and governed is not None and governed["trainable"]


def _spans(step: Step, offset: int) -> list[SequenceSpan]:
    """Return runs of trainable response tokens with one policy version, at their position in the sequence."""
    mask = list(step["loss_mask"])
    temperature, restriction = step["sampling"]["temperature"], restriction_of(step["sampling"])
    spans = []
    for policy in step["policy_spans"]:
        start = policy["start"]
        while start < policy["end"]:
            if mask and not mask[start]:
                start += 1
                continue
            end = start + 1
            while end < policy["end"] and (not mask or mask[end]):
                end += 1
            spans.append(
                new_sequence_span(
                    start=offset + start,
                    end=offset + end,
                    step_index=step["step_index"],
                    model=policy["model"],
                    version=policy["version"],
                    temperature=temperature,
                    restriction=restriction,
                )
            )
            start = end
    return spans
