"""Training sequences with their advantages, and what the losses see of some of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stepstream.learner.advantages import Rule, expand, expand_targets
from stepstream.learner.attempt import Attempt, Tokens
from stepstream.learner.evidence import Evidence
from stepstream.learner.losses import Batch


@dataclass(frozen=True, slots=True)
class Row:
    """One training sequence of an update."""

    tokens: Tokens
    advantages: npt.NDArray[np.float32]
    """Of each trained token. Shape [trained]."""
    targets: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    """What the critic should have said before each of them, NaN where it is not asked. Shape [trained]; empty without
    a critic."""
    values: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    """What it said there. Shape [trained]; empty without a critic."""


def rows_of(groups: Sequence[Sequence[Attempt]], rule: Rule, evidence: Evidence) -> list[Row]:
    """The training sequences of the groups, in order, with the advantages that the rule gives them."""
    credits = [credit for group in rule(evidence.groups).groups for credit in group]
    rows: list[Row] = []
    for attempt, credit in zip((attempt for group in groups for attempt in group), credits, strict=True):
        for tokens in attempt.sequences:
            advantages = expand(credit, tokens.steps).astype(np.float32)
            if (values := evidence.values.get(len(rows))) is None:
                rows.append(Row(tokens, advantages))
            else:
                targets = expand_targets(credit, tokens.steps).astype(np.float32)
                rows.append(Row(tokens, advantages, targets, values))
    return rows


def tokens_of(rows: Sequence[Row]) -> list[Tokens]:
    """The training sequence of each row."""
    return [row.tokens for row in rows]


def critic_targets(rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """What a critic should have said before the rows' trained tokens, one row after the other, and what it said."""
    return (
        torch.from_numpy(np.concatenate([row.targets for row in rows])),
        torch.from_numpy(np.concatenate([row.values for row in rows])),
    )


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
