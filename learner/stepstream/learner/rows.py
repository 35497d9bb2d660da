"""Training sequences with their advantages, and what the losses see of some of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stepstream.learner.advantages import Rule, expand
from stepstream.learner.attempt import Attempt, Tokens
from stepstream.learner.losses import Batch


@dataclass(frozen=True, slots=True)
class Row:
    """One training sequence of an update."""

    tokens: Tokens
    advantages: npt.NDArray[np.float32]
    """Of each trained token. Shape [trained]."""


def rows_of(groups: Sequence[Sequence[Attempt]], rule: Rule) -> list[Row]:
    """The training sequences of the groups, in order, with the advantages that the rule gives them."""
    credits = rule([[attempt.credit for attempt in group] for group in groups]).groups
    return [
        Row(tokens, expand(credit, tokens.steps).astype(np.float32))
        for group, group_credits in zip(groups, credits, strict=True)
        for attempt, credit in zip(group, group_credits, strict=True)
        for tokens in attempt.sequences
    ]


def trained_sizes(rows: Sequence[Row]) -> list[int]:
    """Trained tokens of each row."""
    return [row.tokens.trained.size for row in rows]


def loss_batch(
    rows: Sequence[Row], current: Tensor, proximal: Tensor, version: int, reference: Tensor | None = None
) -> Batch:
    """The rows' trained tokens, one row after the other.

    Args:
        current: log θ of each, with gradient. Shape [tokens].
        proximal: log p of each. Shape [tokens].
        version: version that the update trains from.
        reference: log ref of each, where the objective asks for it. Shape [tokens].
    """
    # A step's tokens in two training sequences are two segments: what is shared is shared within one forward pass.
    steps = np.unique(
        np.concatenate(
            [np.stack((np.full_like(row.tokens.steps, n), row.tokens.steps)) for n, row in enumerate(rows)], 1
        ),
        axis=1,
        return_inverse=True,
    )[1]
    return Batch(
        current=current,
        proximal=proximal,
        behaviour=torch.from_numpy(np.concatenate([row.tokens.logprobs for row in rows])),
        advantage=torch.from_numpy(np.concatenate([row.advantages for row in rows])),
        sequences=torch.from_numpy(np.repeat(np.arange(len(rows)), trained_sizes(rows))),
        steps=torch.from_numpy(steps.reshape(-1)),
        versions=torch.from_numpy(np.concatenate([row.tokens.versions for row in rows])),
        version=version,
        reference=reference,
    )
