"""Compute the loss of a gradient step, in two passes if it depends on more tokens than one forward pass has.

The ratio of a response with several training sequences, or M2PO's bound over a minibatch, is a function of
log-probabilities that no single forward pass has. The first pass computes them without gradient. The derivative of the
loss by each of them is a number. The second pass weighs each token's log θ with it, in as many forward passes as memory
requires. The gradient is the same.
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
from stepstream.learner.losses.ratios import log_ratio
from stepstream.learner.losses.regularizers import penalty
from stepstream.learner.model.forward import Scores
from stepstream.learner.training.rows import Row, trained_sizes


def row_scales(
    rows: Sequence[Row], part: Sequence[int], rule: Aggregation | Literal["sum"], constant: int
) -> dict[int, float]:
    """Return the scale of each row's tokens in the loss of the rows of `part`: `token_scales` of their attempts."""
    sizes: dict[int, int] = {}
    for index in part:
        row = rows[index]
        sizes[row.attempt] = sizes.get(row.attempt, 0) + row.tokens.trained.size
    scales = dict(zip(sizes, token_scales(list(sizes.values()), rule, constant), strict=True))
    return {index: scales[rows[index].attempt] for index in part}


def loss_batch(
    rows: Sequence[Row], current: Tensor, proximal: Tensor, version: int, reference: Tensor | None = None
) -> Batch:
    """Return the rows' trained tokens as input of the loss, row after row.

    Args:
        rows: rows of one forward pass or of a whole gradient step.
        current: log θ of each, with gradient. Shape [tokens].
        proximal: log p of each. Shape [tokens].
        version: version that the update trains from.
        reference: log ref of each; None if the objective does not need it. Shape [tokens].
    """
    # A step's tokens are all in one training sequence.
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
    """Statistics of one gradient step, or of one forward pass of it."""

    loss: float = 0.0
    clipped: int = 0
    capped: int = 0
    rejected: int = 0
    grad_norm: float = 0.0
    skipped: int = 0
    value_loss: float = 0.0
    """Mean loss over the critic's targets; 0 without a critic."""
    entropy: float = 0.0
    """Sum of the entropy over the trained tokens, in nats."""
    reference_kl: float = 0.0
    """Sum over the trained tokens of the estimate of KL(θ‖ref), in nats; 0 without a reference."""
    weights: list[Tensor] = field(default_factory=list)
    """Importance weights of the trained tokens, a tensor for each forward pass."""
    marks: list[Tensor] = field(default_factory=list)
    """By token: staleness, then 1 if it was clipped, if rejected, if sampled by a known version. Int64. Shape
    [4, tokens]."""
    gaps: list[Tensor] = field(default_factory=list)
    """log p - log μ of tokens that the very version p was served for, in nats: the difference between learner and
    engine. A tensor for each forward pass with such tokens."""

    @classmethod
    def of(cls, loss: float, terms: Terms, batch: Batch, entropy: Tensor, proximal_is_version: bool = False) -> Self:
        """Return the statistics of one forward pass, with its part of the loss.

        Args:
            loss: loss of the pass.
            terms: its objective.
            batch: its tokens.
            entropy: entropy of each token's distribution.
            proximal_is_version: True if p is the published version `batch.version` itself.
        """
        assert batch.versions is not None
        gaps = []
        if proximal_is_version and batch.proximal is not None:
            found, finite = log_ratio(batch.proximal, batch.behaviour)
            gaps = [found[finite & (batch.versions == batch.version)]]
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
            gaps=gaps,
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
        """Sum the statistics of the forward passes of one gradient step."""
        return cls(
            loss=sum(each.loss for each in passes),
            clipped=sum(each.clipped for each in passes),
            capped=sum(each.capped for each in passes),
            rejected=sum(each.rejected for each in passes),
            entropy=sum(each.entropy for each in passes),
            reference_kl=sum(each.reference_kl for each in passes),
            weights=[weight for each in passes for weight in each.weights],
            marks=[marks for each in passes for marks in each.marks],
            gaps=[gaps for each in passes for gaps in each.gaps],
        )


class LossFunction(Protocol):
    """The part of an objective that this module uses."""

    @property
    def reach(self) -> Reach:
        """Range of tokens on which a token's objective depends."""

    def terms(self, batch: Batch) -> Terms:
        """Return J of each token."""


def needs_first_pass(objective: LossFunction, rows: Sequence[Row], batches: Sequence[Sequence[int]]) -> bool:
    """Return True if a token's objective depends on tokens of several forward passes.

    Args:
        objective: the objective, whose reach decides.
        rows: rows of the update.
        batches: indices of the rows of each forward pass of one gradient step.
    """
    if objective.reach == "minibatch":
        return len(batches) > 1
    attempts = [attempt for batch in batches for attempt in {rows[index].attempt for index in batch}]
    return objective.reach == "sequence" and len(set(attempts)) < len(attempts)


@dataclass(frozen=True, slots=True)
class FirstPass:
    """Result of the first pass over a whole gradient step."""

    weights: Mapping[int, Tensor]
    """Derivative of the loss by log θ of each trained token, by row."""
    stats: UpdateStats
    """Statistics of the step."""

    def surrogate_loss(self, rows: Sequence[int], current: Tensor) -> Tensor:
        """Return a scalar with the gradient of the loss in these rows' log θ; its value is not that of the loss.

        Args:
            rows: numbers of the rows of one forward pass.
            current: log θ of their trained tokens, row after row, with gradient.
        """
        slopes = torch.cat([self.weights[row] for row in rows])
        # A log θ that is not finite was masked and has slope 0; the product would be NaN.
        return (slopes * torch.where(slopes != 0, current, 0.0)).sum()


@dataclass(frozen=True, slots=True)
class Minibatch:
    """The rows of one gradient step and their objective."""

    objective: LossFunction
    """The maximised objective."""
    rows: Mapping[int, Row]
    """Rows by number."""
    scales: Mapping[int, float]
    """Scale of each row's tokens in the loss, by number."""
    version: int
    """Version that the update trains from."""
    proximal_is_version: bool = False
    """True if the proximal policy is that version, without unpublished updates."""

    def loss_and_stats(
        self, numbers: Sequence[int], scores: Scores, proximal: Tensor | None, reference: Tensor | None
    ) -> tuple[Tensor, UpdateStats]:
        """Return the loss of some of the rows, with gradient, and their statistics.

        Args:
            numbers: numbers of these rows.
            scores: scores of their trained tokens under θ, row after row.
            proximal: log p of them; None: θ is p.
            reference: log ref of them; None: the objective does not need it.
        """
        chosen, current = [self.rows[number] for number in numbers], scores.logprobs
        before = current.detach() if proximal is None else proximal
        batch = loss_batch(chosen, current, before, self.version, reference)
        terms = self.objective.terms(batch)
        scales = torch.tensor([self.scales[number] for number in numbers])
        loss = -(scales.repeat_interleave(torch.tensor(trained_sizes(chosen))) * terms.objective).sum()
        return loss, UpdateStats.of(loss.item(), terms, batch, scores.entropy, self.proximal_is_version)

    def first_pass(self, scores: Scores, proximal: Tensor | None, reference: Tensor | None) -> FirstPass:
        """Compute the derivatives of the loss for all rows; the arguments are as in `loss_and_stats`, in row order."""
        leaf = scores.logprobs.clone().requires_grad_()
        loss, stats = self.loss_and_stats(list(self.rows), Scores(leaf, scores.entropy), proximal, reference)
        (slopes,) = torch.autograd.grad(loss, leaf)
        sizes = trained_sizes(list(self.rows.values()))
        return FirstPass(dict(zip(self.rows, slopes.split(sizes), strict=True)), stats)
