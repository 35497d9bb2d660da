"""The loss of a gradient step, and how it is learned from where it looks further than one forward pass goes.

The ratio of a response that lies in several training sequences, or M2PO's bound over a minibatch, is a function of
log-probabilities that no single pass has. They are found out first, without gradient; the loss's derivative by each of
them is a number, which then weighs the token's log θ in as many passes as memory asks for. The gradient is the same.

x

x
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from stepstream.learner.advantages import Aggregation
from stepstream.learner.data.sequences import UNVERSIONED
from stepstream.learner.losses import Batch, Reach, Terms, token_scales
from stepstream.learner.losses.regularizers import penalty
from stepstream.learner.model.forward import Scores
from stepstream.learner.training.rows import Row, trained_sizes


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


@dataclass(slots=True)
class UpdateStats:
    """One gradient step, or one forward pass of it."""

    loss: float = 0.0
    clipped: int = 0
    capped: int = 0
    rejected: int = 0
    grad_norm: float = 0.0
    skipped: int = 0
    value_loss: float = 0.0
    """Mean over the critic's targets; 0 without a critic."""
    entropy: float = 0.0
    """Sum over the trained tokens, in nats."""
    reference_kl: float = 0.0
    """Sum over the trained tokens of the estimate of KL(θ‖ref), in nats; 0 without a reference."""
    weights: list[Tensor] = field(default_factory=list)
    """Importance weights of the trained tokens, a tensor for each forward pass."""
    marks: list[Tensor] = field(default_factory=list)
    """Staleness of each of them, whether it was clipped, rejected, and sampled by a known version. Int64. Shape
    [4, tokens]."""

    @classmethod
    def of(cls, loss: float, terms: Terms, batch: Batch, entropy: Tensor) -> Self:
        """The tokens of one forward pass and their part of the loss."""
        assert batch.versions is not None
        distance = 0.0
        if batch.reference is not None:
            current = batch.current.detach()
            distance = float(penalty("off_policy_loss", current, batch.reference, batch.behaviour).sum())
        return cls(
            reference_kl=distance,
            loss=loss,
            clipped=int(terms.clipped.sum()),
            capped=int(terms.capped.sum()),
            rejected=int(terms.rejected.sum()),
            entropy=float(entropy.sum()),
            weights=[terms.weight],
            marks=[
                torch.stack(
                    (
                        batch.version - batch.versions,
                        terms.clipped.long(),
                        terms.rejected.long(),
                        (batch.versions != UNVERSIONED).long(),
                    )
                )
            ],
        )

    @classmethod
    def of_all(cls, passes: Sequence["UpdateStats"]) -> Self:
        """The step that some forward passes make together."""
        return cls(
            loss=sum(each.loss for each in passes),
            clipped=sum(each.clipped for each in passes),
            capped=sum(each.capped for each in passes),
            rejected=sum(each.rejected for each in passes),
            entropy=sum(each.entropy for each in passes),
            reference_kl=sum(each.reference_kl for each in passes),
            weights=[weight for each in passes for weight in each.weights],
            marks=[marks for each in passes for marks in each.marks],
        )


class LossFunction(Protocol):
    """What an objective is, seen from here."""

    @property
    def reach(self) -> Reach:
        """How far it looks from a token."""

    def terms(self, batch: Batch) -> Terms:
        """J of each token."""


def looks_beyond(objective: LossFunction, rows: Sequence[Row], batches: Sequence[Sequence[int]]) -> bool:
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
class FirstPass:
    """A gradient step that was judged as a whole."""

    weights: Mapping[int, Tensor]
    """Derivative of the loss by log θ of each trained token, by row."""
    step: UpdateStats
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

    objective: LossFunction
    """What is maximised."""
    rows: Mapping[int, Row]
    """By number."""
    scales: Mapping[int, float]
    """What each token of a row counts, by number."""
    version: int
    """Version that the update trains from."""

    def judged(
        self, numbers: Sequence[int], scores: Scores, proximal: Tensor | None, reference: Tensor | None
    ) -> tuple[Tensor, UpdateStats]:
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
        return loss, UpdateStats.of(loss.item(), terms, batch, scores.entropy)

    def foreseen(self, scores: Scores, proximal: Tensor | None, reference: Tensor | None) -> FirstPass:
        """Judges all rows before the step is made; the arguments are those of `judged`, for all rows in their order."""
        leaf = scores.logprobs.clone().requires_grad_()
        loss, step = self.judged(list(self.rows), Scores(leaf, scores.entropy), proximal, reference)
        (slopes,) = torch.autograd.grad(loss, leaf)
        sizes = trained_sizes(list(self.rows.values()))
        return FirstPass(dict(zip(self.rows, slopes.split(sizes), strict=True)), step)
