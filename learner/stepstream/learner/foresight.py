"""The loss of a gradient step, and how it is learned from where it looks further than one forward pass goes.

The ratio of a response that lies in several training sequences, or M2PO's bound over a minibatch, is a function of
log-probabilities that no single pass has. They are found out first, without gradient; the loss's derivative by each of
them is a number, which then weighs the token's log θ in as many passes as memory asks for. The gradient is the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from stepstream.learner.figures import Step
from stepstream.learner.losses import Batch, Reach, Terms
from stepstream.learner.model.forward import Scores
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


@dataclass(frozen=True, slots=True)
class Foreseen:
    """A gradient step that was judged as a whole."""

    weights: Mapping[int, Tensor]
    """Derivative of the loss by log θ of each trained token, by row."""
    step: Step
    """What to tell of it."""

    def loss(self, rows: Sequence[int], current: Tensor) -> Tensor:
        """Something with the gradient of the loss in these rows' log θ, but not its value.

        Args:
            rows: numbers of the rows of one forward pass.
            current: log θ of their trained tokens, row after row, with gradient.
        """
        slopes = torch.cat([self.weights[row] for row in rows])
        # What is not finite was masked: its slope is 0, and 0 times it would not be.
        return (slopes * torch.where(slopes != 0, current, 0.0)).sum()


@dataclass(frozen=True, slots=True)
class Minibatch:
    """What one gradient step learns from."""

    objective: Judge
    """What is maximised."""
    rows: Mapping[int, Row]
    """By number."""
    scales: Mapping[int, float]
    """What each token of a row counts, by number."""
    version: int
    """Version that the update trains from."""

    def judged(
        self, numbers: Sequence[int], scores: Scores, proximal: Tensor | None, reference: Tensor | None
    ) -> tuple[Tensor, Step]:
        """The loss of some of the rows, with gradient, and what to tell of them.

        Args:
            numbers: of these rows.
            scores: of their trained tokens under θ, row after row.
            proximal: log p of them; None where θ is p.
            reference: log ref of them, where the objective asks for it.
        """
        chosen, current = [self.rows[number] for number in numbers], scores.logprobs
        before = current.detach() if proximal is None else proximal
        batch = loss_batch(chosen, current, before, self.version, reference)
        terms = self.objective.terms(batch)
        scales = torch.tensor([self.scales[number] for number in numbers])
        loss = -(scales.repeat_interleave(torch.tensor(trained_sizes(chosen))) * terms.objective).sum()
        return loss, Step.of(loss.item(), terms, batch, scores.entropy)

    def foreseen(self, scores: Scores, proximal: Tensor | None, reference: Tensor | None) -> Foreseen:
        """Judges all rows before the step is made; the arguments are those of `judged`, for all rows in their order."""
        leaf = scores.logprobs.clone().requires_grad_()
        loss, step = self.judged(list(self.rows), Scores(leaf, scores.entropy), proximal, reference)
        (slopes,) = torch.autograd.grad(loss, leaf)
        sizes = trained_sizes(list(self.rows.values()))
        return Foreseen(dict(zip(self.rows, slopes.split(sizes), strict=True)), step)
