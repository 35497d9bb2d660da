"""Combine training sequences with their advantages and value targets."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stepstream.learner.advantages import Rule, expand, expand_targets
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.sequences import TokenSequence
from stepstream.learner.training.rule_inputs import RuleInputs


@dataclass(frozen=True, slots=True)
class Row:
    """One training sequence of an update."""

    tokens: TokenSequence
    attempt: int
    """Number of its attempt in the update; an attempt whose context was edited has several rows."""
    advantages: npt.NDArray[np.float32]
    """Advantage of each trained token. Shape [trained]."""
    targets: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    """Value target before each trained token, NaN: no target. Shape [trained]; empty without a critic."""
    values: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    """The critic's value before each trained token. Shape [trained]; empty without a critic."""


def rows_of(groups: Sequence[Sequence[Attempt]], rule: Rule, inputs: RuleInputs) -> list[Row]:
    """Return the training sequences of the groups, in order, with the rule's advantages."""
    credits = [credit for group in rule(inputs.groups).groups for credit in group]
    rows: list[Row] = []
    attempts = (attempt for group in groups for attempt in group)
    for number, (attempt, credit) in enumerate(zip(attempts, credits, strict=True)):
        for tokens in attempt.sequences:
            advantages = expand(credit, tokens.steps).astype(np.float32)
            if (values := inputs.values.get(len(rows))) is None:
                rows.append(Row(tokens, number, advantages))
            else:
                targets = expand_targets(credit, tokens.steps).astype(np.float32)
                rows.append(Row(tokens, number, advantages, targets, values))
    return rows


def tokens_of(rows: Sequence[Row]) -> list[TokenSequence]:
    """Return the training sequence of each row."""
    return [row.tokens for row in rows]


def critic_targets(rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Return value targets and values before the rows' trained tokens, row after row."""
    return (
        torch.from_numpy(np.concatenate([row.targets for row in rows])),
        torch.from_numpy(np.concatenate([row.values for row in rows])),
    )


def trained_sizes(rows: Sequence[Row]) -> list[int]:
    """Return the number of trained tokens of each row."""
    return [row.tokens.trained.size for row in rows]
