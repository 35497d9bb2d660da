"""What feedback demonstrates, as training sequences behind the steps' own prompts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepstream.learner.tokens import Limits, Tokens, is_sampled


def shown_in(
    record: Mapping[str, Any], sequences: tuple[Tokens, ...], limits: Limits
) -> tuple[tuple[Tokens, ...], tuple[Tokens, ...], str]:
    """Its own sequences, without responses in whose place others are imitated; what was demonstrated; and why some
    demonstration cannot be used."""
    own, shown, fault = list(sequences), [], ""
    for position, step in enumerate(record["steps"]):
        if step["demonstration"] is None:
            continue
        prompt = step["prompt_tokens"] if is_sampled(record) else None
        made = _demonstration(step["demonstration"], prompt, position, sequences, limits)
        if isinstance(made, Tokens):
            shown.append(made)
        else:
            fault = made
        if limits.needs.demonstrations == "imitated":
            own = [tokens.only(tokens.steps != position) for tokens in own]
    return tuple(tokens for tokens in own if tokens.trained.size), tuple(shown), fault


def teaches_without(record: Mapping[str, Any], sequences: tuple[Tokens, ...], limits: Limits) -> bool:
    """Whether an attempt may teach something although nothing that was demonstrated can be used."""
    if limits.needs.demonstrations == "preferred":
        return bool(record["group_id"])
    return bool(sequences) and bool(record["success"])


def _demonstration(
    text: str, prompt: int | None, position: int, sequences: Sequence[Tokens], limits: Limits
) -> Tokens | str:
    """What was demonstrated behind its step's prompt; or why that cannot be, as one of `fates.REASONS`.

    The prompt is never tokenised again: it is the beginning of the sequence that holds the step's own response.

    Args:
        text: what was demonstrated.
        prompt: tokens of the step's prompt; None: all before its own response.
        position: of the step among the record's.
        sequences: of the attempt.
        limits: of the model.
    """
    assert limits.speech is not None
    said = np.asarray(limits.speech(text), dtype=np.int64)
    if not said.size or int(said.max()) >= limits.vocabulary:
        return "demonstration_form"
    for tokens in sequences:
        here = tokens.steps == position
        if not here.any():
            continue
        first = int(tokens.trained[here][0])
        end = first if prompt is None else prompt
        if not 1 <= end <= first:
            continue
        if end + said.size > limits.max_length:
            return "too_long"
        return Tokens(
            ids=np.concatenate([tokens.ids[:end], said]),
            trained=np.arange(end, end + said.size, dtype=np.int64),
            logprobs=np.full(said.size, np.nan, np.float32),
            versions=np.full(said.size, tokens.versions[here].min()),
            steps=np.full(said.size, position),
        )
    return "no_prompt"
