"""Training sequences with their advantages, and what the losses see of some of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stepstream.learner.advantages import Aggregation, Rule, expand, expand_targets
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.sequences import Tokens
from stepstream.learner.evidence import Evidence
from stepstream.learner.losses import Batch, token_scales


@dataclass(frozen=True, slots=True)
class Row:
    """One training sequence of an update."""

    tokens: Tokens
    attempt: int
    """Number of the attempt that it is of, in the update; an attempt whose context was edited has several rows."""
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
    attempts = (attempt for group in groups for attempt in group)
    for number, (attempt, credit) in enumerate(zip(attempts, credits, strict=True)):
        for tokens in attempt.sequences:
            advantages = expand(credit, tokens.steps).astype(np.float32)
            if (values := evidence.values.get(len(rows))) is None:
                rows.append(Row(tokens, number, advantages))
            else:
                targets = expand_targets(credit, tokens.steps).astype(np.float32)
                rows.append(Row(tokens, number, advantages, targets, values))
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


def row_scales(
    rows: Sequence[Row], part: Sequence[int], rule: Aggregation | Literal["sum"], constant: int
) -> dict[int, float]:
    """What each token of a row counts in the loss of the rows of the part, by row: `token_scales` of their attempts."""
    sizes: dict[int, int] = {}
    for index in part:
        row = rows[index]
        sizes[row.attempt] = sizes.get(row.attempt, 0) + row.tokens.trained.size
    scales = dict(zip(sizes, token_scales(list(sizes.values()), rule, constant), strict=True))
    return {index: scales[rows[index].attempt] for index in part}


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
    # A step's tokens lie in one training sequence.
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
        sequences=torch.from_numpy(np.repeat([row.attempt for row in rows], trained_sizes(rows))),
        steps=torch.from_numpy(steps.reshape(-1)),
        versions=torch.from_numpy(np.concatenate([row.tokens.versions for row in rows])),
        version=version,
        reference=reference,
    )
