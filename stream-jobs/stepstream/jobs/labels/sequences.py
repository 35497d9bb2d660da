"""Joins a trajectory's steps into as few training sequences as their shared prefixes allow. Pure.

A step carries only what is new in its prompt and names the rest by a step, a length and a digest: the steps form a
tree. Where the rest is all that a sequence holds so far, the sequence simply grows; where it is only the beginning of
it, the context was edited, compacted or branched, and a new sequence begins with the shared tokens, whose responses
are trained on in the first one alone. Where it cannot be verified, the step has no known tokens and is left out:
never a wrong token.

The cost is linear in the tokens that come out: what was hashed of a context is kept with its step, so that a prefix is
never hashed from its beginning again.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stepstream.topics.events import SequenceSpan, Step, TrainingSequence, new_sequence_span, new_training_sequence
from stepstream.topics.step_contexts import failed


@dataclass
class JoinedSequences:
    """The sequences, and what became of each step."""

    sequences: list[TrainingSequence] = field(default_factory=list)
    trainable: list[bool] = field(default_factory=list)
    """By step: whether its response is in a sequence's spans."""
    faults: list[str] = field(default_factory=list)
    """Why steps fell back to text, each reason once."""
    text: list[bool] = field(default_factory=list)
    """By step: whether it has no verified tokens."""


class _Context(NamedTuple):
    """A step's whole prompt and response: the first `end` tokens of a sequence, which only ever grows."""

    sequence: TrainingSequence
    end: int
    hashed: "hashlib._Hash"
    """SHA-256 over them as little-endian int32, to be copied and gone on with."""
    before: "_Context | None"
    """The context that it continues, for a prefix that ends inside it."""


def join_sequences(steps: Sequence[Step]) -> JoinedSequences:
    """Lays steps over training sequences.

    Args:
        steps: the trajectory's steps in order of their index; gaps are allowed.
    """
    joined = JoinedSequences()
    contexts: dict[int, _Context] = {}
    for step in steps:
        named = step["prompt_shared_step"]
        before = contexts.get(step["step_index"] - 1 if named is None else named)
        hashed, fault = _verified(step, before)
        if fault and fault not in joined.faults and not failed(step):
            joined.faults.append(fault)
        joined.text.append(hashed is None)
        if hashed is None:
            joined.trainable.append(False)
            continue
        context = _lay(step, before, hashed, joined.sequences)
        contexts[step["step_index"]] = context
        sequence, start = context.sequence, context.end - len(step["response_token_ids"])
        spans = _spans(step, start) if _may_train(step) else []
        for span in spans:
            sequence["spans"].append(span)
            sequence["logprobs"] += step["response_logprobs"][span["start"] - start : span["end"] - start]
        joined.trainable.append(bool(spans))
    joined.sequences = [sequence for sequence in joined.sequences if sequence["spans"]]
    return joined


def _verified(step: Step, before: _Context | None) -> tuple["hashlib._Hash | None", str]:
    """The hash over the shared part, or None and why the prompt is not known."""
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
    """The hash over the first `length` tokens of a context, from the longest beginning of it that was hashed."""
    below = _below(context, length)
    hashed, start = (hashlib.sha256(), 0) if below is None else (below.hashed.copy(), below.end)
    hashed.update(_packed(context.sequence["token_ids"][start:length]))
    return hashed


def _lay(step: Step, before: _Context | None, hashed: "hashlib._Hash", sequences: list[TrainingSequence]) -> _Context:
    """Puts a verified step behind its shared part: in the same sequence where that ends there, else in a new one."""
    shared, prompt = step["prompt_shared_tokens"], step["prompt_token_ids"]
    sequence = None
    if before is not None and len(before.sequence["token_ids"]) == before.end <= shared + len(prompt):
        # A producer may share less than it could: its prompt may repeat the rest of the sequence token by token.
        rest = before.sequence["token_ids"][shared:]
        if prompt[: len(rest)] == rest:
            sequence, prompt = before.sequence, prompt[len(rest) :]
            hashed.update(_packed(rest))
    if sequence is None:
        sequence = new_training_sequence()
        if shared:
            assert before is not None
            sequence["token_ids"] += before.sequence["token_ids"][:shared]
            before = _below(before, shared)
        else:
            before = None
        sequences.append(sequence)
    new = prompt + step["response_token_ids"]
    sequence["token_ids"] += new
    hashed.update(_packed(new))
    return _Context(sequence, len(sequence["token_ids"]), hashed, before)


def _below(context: _Context | None, length: int) -> _Context | None:
    """The longest context on the way to the root that lies wholly inside the first `length` tokens."""
    while context is not None and context.end > length:
        context = context.before
    return context


def _packed(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


def _may_train(step: Step) -> bool:
    governed = step["governed"]
    return step["consent"] == "train" and governed is not None and governed["trainable"]


def _spans(step: Step, offset: int) -> list[SequenceSpan]:
    """Runs of response tokens with one policy version and the loss mask set, moved to their place."""
    mask = step["loss_mask"]
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
                )
            )
            start = end
    return spans
