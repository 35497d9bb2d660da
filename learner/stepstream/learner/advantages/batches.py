"""Whiten the advantages of all tokens of a batch, and convert token values to credits."""

from collections import Counter
from collections.abc import Iterator, Sequence

from stepstream.learner.advantages.arithmetic import whitened
from stepstream.learner.advantages.base import Credit, token_mean

Tokens = list[list[list[list[float]]]]
"""Values by group, attempt, step and trained token."""


def whiten_tokens(tokens: Tokens, used: Sequence[bool], counts: Counter[str]) -> None:
    """Whiten the tokens of the used groups, in place; other groups, and equal values, become zeros."""
    flat = [value for group, use in zip(tokens, used, strict=True) if use for value in _values(group)]
    scaled = whitened(flat)
    if scaled is None:
        counts["flat_batch"] += 1
    fresh = iter(scaled or [0.0] * len(flat))
    for group, use in zip(tokens, used, strict=True):
        for attempt in group:
            for step in attempt:
                step[:] = [next(fresh) if use else 0.0 for _ in step]


def token_credits(tokens: Tokens, targets: Tokens | None = None) -> list[list[Credit]]:
    """Return credits with an advantage for every trained token."""
    return [
        [
            Credit(
                steps=tuple(token_mean(step) for step in attempt),
                tokens=tuple(tuple(step) for step in attempt),
                targets=tuple(value for step in targets[g][i] for value in step) if targets else (),
            )
            for i, attempt in enumerate(group)
        ]
        for g, group in enumerate(tokens)
    ]


def _values(group: Sequence[Sequence[Sequence[float]]]) -> Iterator[float]:
    for attempt in group:
        for step in attempt:
            yield from step
