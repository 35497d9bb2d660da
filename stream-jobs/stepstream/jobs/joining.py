"""Joins a trajectory's steps into as few training sequences as their shared prefixes allow. Pure.

A step carries only what is new in its prompt and names the rest by length and digest. Where the rest is all of the
step before (prompt and response), the sequence simply grows; where it is only the beginning of it, the context was
edited or branched, and a new sequence begins with the shared tokens. Where it cannot be verified, the step has no
known tokens and is left out: never a wrong token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from stepstream.topics.events import SequenceSpan, Step, TrainingSequence, new_sequence_span, new_training_sequence
from stepstream.topics.ids import token_digest


@dataclass
class Joined:
    """The sequences, and what became of each step."""

    sequences: list[TrainingSequence] = field(default_factory=list)
    trainable: list[bool] = field(default_factory=list)
    """By step: whether its response is in a sequence's spans."""
    faults: list[str] = field(default_factory=list)
    """Why steps fell back to text, each reason once."""
    text: list[bool] = field(default_factory=list)
    """By step: whether it has no verified tokens."""


def join(steps: Sequence[Step]) -> Joined:
    """Lays steps over training sequences.

    Args:
        steps: the trajectory's steps in order of their index; gaps are allowed.
    """
    joined = Joined()
    context: list[int] | None = None
    index_before = -1
    sequence: TrainingSequence | None = None
    for step in steps:
        if step["step_index"] != index_before + 1:
            context = None
        index_before = step["step_index"]
        prompt, fault = _prompt(step, context)
        if fault and fault not in joined.faults:
            joined.faults.append(fault)
        joined.text.append(prompt is None)
        if prompt is None:
            context = sequence = None
            joined.trainable.append(False)
            continue
        if sequence is None or context is None or len(prompt) < len(context) or prompt[: len(context)] != context:
            sequence = new_training_sequence()
            joined.sequences.append(sequence)
        start = len(prompt)
        sequence["token_ids"][:] = prompt + step["response_token_ids"]
        context = list(sequence["token_ids"])
        spans = _spans(step, start) if _may_train(step) else []
        for span in spans:
            sequence["spans"].append(span)
            sequence["logprobs"] += step["response_logprobs"][span["start"] - start : span["end"] - start]
        joined.trainable.append(bool(spans))
    joined.sequences = [sequence for sequence in joined.sequences if sequence["spans"]]
    return joined


def _prompt(step: Step, context: list[int] | None) -> tuple[list[int] | None, str]:
    """The whole prompt in tokens, or None and why it is not known."""
    if step["fidelity"] != "token":
        return None, f"fidelity:{step['fidelity']}"
    shared = step["prompt_shared_tokens"]
    if shared == 0:
        return list(step["prompt_token_ids"]), ""
    if context is None:
        return None, "prefix:missing"
    if shared > len(context) or token_digest(context[:shared]) != step["prompt_shared_digest"]:
        return None, "prefix:mismatch"
    return context[:shared] + step["prompt_token_ids"], ""


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
