"""The loss of a gradient step, and how it is learned from where it looks further than one forward pass goes.

The ratio of a response that lies in several training sequences, or M2PO's bound over a minibatch, is a function of
log-probabilities that no single pass has. They are found out first, without gradient; the loss's derivative by each of
them is a number, which then weighs the token's log θ in as many passes as memory asks for. The gradient is the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from stepstream.learner.figures import Step
from stepstream.learner.forward import Scores
from stepstream.learner.losses import Batch, Reach, Terms
from stepstream.learner.rows import Row, loss_batch, trained_sizes


class Judge(Protocol):
    """What an objective is, seen from here."""

    @property
    def reach(self) -> Reach:
        """How far it looks from a token."""

    def terms(self, batch: Batch) -> Terms:
        """J of each token."""


def looks_beyond(objective: Judge, rows: Sequence[Row], batches: Sequence[Sequence[int]]) -> bool:
    """Whether the objective looks further than one forward pass goes.

    Args:
        objective: its reach.
        rows: of the update.
        batches: indices of the rows of each forward pass of one gradient step.
    """
    if objective.reach == "minibatch":
        return len(batches) > 1
    attempts = [attempt for batch in batches for attempt in {rows[index].attempt for index in batch}]
    return objective.reach == "sequence" and len(set(attempts)) < len(attempts)


def judged(
    objective: Judge,
    rows: Mapping[int, Row],
    scales: Mapping[int, float],
    version: int,
    scores: Scores,
    proximal: Tensor | None,
    reference: Tensor | None,
) -> tuple[Tensor, Step]:
    """The loss of some rows, with gradient, and what to tell of them.

    Args:
        objective: what is maximised.
        rows: by number.
        scales: what each token of a row counts, by number.
        version: version that the update trains from.
        scores: of the rows' trained tokens under θ, row after row.
        proximal: log p of them; None where θ is p.
        reference: log ref of them, where the objective asks for it.
    """
    chosen, current = list(rows.values()), scores.logprobs
    before = current.detach() if proximal is None else proximal
    batch = loss_batch(chosen, current, before, version, reference)
    terms = objective.terms(batch)
    scale = torch.tensor([scales[number] for number in rows]).repeat_interleave(torch.tensor(trained_sizes(chosen)))
    loss = -(scale * terms.objective).sum()
    return loss, Step.of(loss.item(), terms, batch, scores.entropy)


@dataclass(frozen=True, slots=True)
class Foreseen:
    """A gradient step that was judged as a whole."""

    weights: Mapping[int, Tensor]
    """Derivative of the loss by log θ of each trained token, by row."""
    step: Step
    """What to tell of it."""

    @classmethod
    def of(
        cls,
        objective: Judge,
        rows: Mapping[int, Row],
        scales: Mapping[int, float],
        version: int,
        scores: Scores,
        proximal: Tensor | None,
        reference: Tensor | None,
    ) -> Self:
        """Judges all rows of a gradient step; the arguments are those of `judged`."""
        leaf = scores.logprobs.clone().requires_grad_()
        loss, step = judged(objective, rows, scales, version, Scores(leaf, scores.entropy), proximal, reference)
        (slopes,) = torch.autograd.grad(loss, leaf)
        return cls(dict(zip(rows, slopes.split(trained_sizes(list(rows.values()))), strict=True)), step)

    def loss(self, rows: Sequence[int], current: Tensor) -> Tensor:
        """Something with the gradient of the loss in these rows' log θ, but not its value.

        Args:
            rows: numbers of the rows of one forward pass.
            current: log θ of their trained tokens, row after row, with gradient.
        """
        slopes = torch.cat([self.weights[row] for row in rows])
        # What is not finite was masked: its slope is 0, and 0 times it would not be.
        return (slopes * torch.where(slopes != 0, current, 0.0)).sum()
