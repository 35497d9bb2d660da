"""Learn from preferences instead of advantages: pairs (DPO), single judgements (KTO), imitation (SFT).

A preference loss is a function of sums: log θ of whole answers, and log ref of the same. Its derivative by an answer's
sum is one number, which weighs all of the answer's tokens. So the sums are computed first, without gradient, and the
pass with gradient is split into as many forward passes as memory requires. The gradient is the same.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import torch
from torch import Tensor

from stepstream.config import LearnerSettings
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.learning_signal import reward_signal
from stepstream.learner.data.sequences import TokenSequence
from stepstream.learner.losses import Batch, Reach, Terms
from stepstream.learner.losses.preferences import dpo, kto
from stepstream.learner.losses.ratios import log_ratio
from stepstream.learner.training.rows import Row

Loss = Callable[["Answers"], Tensor]


@dataclass(frozen=True, slots=True)
class Answer:
    """A unit of comparison: the own responses of an attempt, or the demonstrations that replace them."""

    sequences: tuple[TokenSequence, ...]
    reward: float
    good: bool
    """True if it reached its goal, or was demonstrated."""

    @property
    def sampled(self) -> bool:
        """True if the policy itself, or an earlier version of it, sampled this answer."""
        return all(bool(np.isfinite(tokens.logprobs).all()) for tokens in self.sequences)


def answers_of(attempt: Attempt) -> list[Answer]:
    """Return the answers of an attempt: its own, and its demonstrations, which are always good."""
    own = Answer(attempt.sequences, attempt.reward, attempt.credit.succeeded)
    demonstrated = Answer(attempt.demonstrations, attempt.reward, good=True)
    return [answer for answer in (own, demonstrated) if answer.sequences]


def corrections_of(attempt: Attempt) -> list[list[Answer]]:
    """Return a pair for each demonstration: the demonstration is better than the response that it replaces."""
    corrections = []
    for demonstrated in attempt.demonstrations:
        own = (tokens.select(tokens.steps == demonstrated.steps[0]) for tokens in attempt.sequences)
        worse = tuple(tokens for tokens in own if tokens.trained.size)
        corrections.append([Answer((demonstrated,), math.inf, good=True), Answer(worse, -math.inf, good=False)])
    return corrections


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one gradient step. Tensors have the shape [answers]."""

    current: Tensor
    """log θ of all trained tokens together."""
    reference: Tensor
    """log ref of the same; zeros if the loss needs none."""
    tokens: Tensor
    """Number of trained tokens."""
    rewards: Tensor
    good: Tensor
    """True if it reached its goal. Bool."""
    groups: Tensor
    """Number of its unit of comparison: its group, or its pair."""
    sampled: Tensor
    """True if the policy itself sampled it. Bool."""


class Likelihood:
    """The objective J = A · log θ, for tokens whose weight in the loss is known."""

    proximal = "none"
    reach: Reach = "row"

    def terms(self, batch: Batch) -> Terms:
        """Return J of each token; the weights, used only in figures, are θ/μ."""
        weight = log_ratio(batch.current.detach(), batch.behaviour)[0].exp()
        nothing = torch.zeros_like(weight, dtype=torch.bool)
        return Terms(batch.advantage * batch.current, weight, nothing, nothing, nothing)


def pairs(answers: Answers, margin: float) -> tuple[Tensor, Tensor]:
    """Return the indices of the better and the worse answer of every pair of a group whose rewards differ by `margin`.

    The difference must exceed the margin.
    """
    rewards, groups = answers.rewards.tolist(), answers.groups.tolist()
    indices = [
        (better, worse)
        for better, worse in permutations(range(len(rewards)), 2)
        if groups[better] == groups[worse] and rewards[better] - rewards[worse] > margin
    ]
    chosen = torch.tensor(indices, dtype=torch.int64).reshape(-1, 2)
    return chosen[:, 0], chosen[:, 1]


def loss_of(config: LearnerSettings) -> Loss:
    """Return the loss that `learner.objective` names, as a mean over pairs (dpo), answers (kto) or tokens (sft)."""

    def pairwise(answers: Answers) -> Tensor:
        better, worse = pairs(answers, config.preference_margin)
        if not better.numel():
            return answers.current.sum() * 0.0
        now, ref = answers.current, answers.reference
        return dpo(now[better], now[worse], ref[better], ref[worse], config.preference_beta).mean()

    def single(answers: Answers) -> Tensor:
        # Only over answers of the policy itself does the mean of log θ/ref estimate KL(θ‖ref). Without any of them the
        # reference point is 0.
        own = answers.sampled.to(answers.current.dtype)
        kl = ((answers.current - answers.reference) * own).sum() / own.sum().clamp(min=1)
        weights = (config.preference_good, config.preference_bad)
        return kto(answers.current, answers.reference, answers.good, kl, config.preference_beta, *weights).mean()

    def imitation(answers: Answers) -> Tensor:
        tokens = (answers.tokens * answers.good).sum().clamp(min=1)
        return -(answers.current * answers.good).sum() / tokens

    return {"dpo": pairwise, "kto": single, "sft": imitation}[config.objective]


class Preference:
    """Converts groups to rows and weights for one preference loss."""

    def __init__(self, config: LearnerSettings) -> None:
        self._config, self._loss = config, loss_of(config)

    def comparisons(self, groups: Sequence[Sequence[Attempt]]) -> list[list[Answer]]:
        """Return the answers of the groups by unit of comparison (kto and sft: by group)."""
        if self._config.objective != "dpo":
            return [[answer for attempt in group for answer in answers_of(attempt)] for group in groups]
        comparisons: list[list[Answer]] = []
        for group in groups:
            if not reward_signal(group, self._config.preference_margin):
                comparisons.append([Answer(each.sequences, each.reward, each.credit.succeeded) for each in group])
            comparisons += [pair for attempt in group for pair in corrections_of(attempt)]
        return comparisons

    def minibatches(self, groups: Sequence[Sequence[object]], number: int) -> list[list[int]]:
        """Return the indices in `groups` of each gradient step of update `number`; a unit is never split."""
        order = list(range(len(groups)))
        random.Random(self._config.seed * 1_000_003 + number).shuffle(order)
        return [order[index :: self._config.minibatches] for index in range(min(self._config.minibatches, len(groups)))]

    def weigh(
        self,
        groups: Sequence[Sequence[Answer]],
        rows: Sequence[Sequence[int]],
        current: Mapping[int, Tensor],
        reference: Mapping[int, Tensor],
    ) -> tuple[list[float], dict[str, float]]:
        """Compute the weights of the answers of some groups.

        Args:
            groups: answers by unit of comparison.
            rows: numbers of the rows of each answer, in the order of the answers.
            current: log θ of the tokens of each row, by its number.
            reference: log ref of the same; empty if the loss needs none.

        Returns:
            The weight of each answer's log θ in the maximised objective, and figures. `loss`. `preferred_share`: share
            of the pairs (dpo) or answers (kto) that the policy orders correctly relative to the reference; for sft, the
            imitated share. For dpo `preferred_margin`: mean over pairs of the gain in log θ/ref of the better answer
            over the worse, in nats.
        """
        numbered = [(number, answer) for number, group in enumerate(groups) for answer in group]
        sums = torch.stack([_sum(current, own) for own in rows]).requires_grad_()
        reference_sums = [_sum(reference, own) for own in rows] if reference else []
        answers = Answers(
            current=sums,
            reference=torch.stack(reference_sums) if reference_sums else torch.zeros_like(sums),
            tokens=torch.tensor([sum(current[row].numel() for row in own) for own in rows], dtype=torch.float64),
            rewards=torch.tensor([answer.reward for _, answer in numbered], dtype=torch.float64),
            good=torch.tensor([answer.good for _, answer in numbered]),
            groups=torch.tensor([number for number, _ in numbered]),
            sampled=torch.tensor([answer.sampled for _, answer in numbered]),
        )
        loss = self._loss(answers)
        (gradient,) = torch.autograd.grad(loss, sums)
        return (-gradient).tolist(), {"loss": float(loss.detach()), **self._in_order(answers)}

    def _in_order(self, answers: Answers) -> dict[str, float]:
        gain = (answers.current - answers.reference).detach()
        if self._config.objective == "sft":
            return {"preferred_share": _mean(answers.good)}
        if self._config.objective == "kto":
            return {"preferred_share": _mean((gain > gain.mean()) == answers.good)}
        better, worse = pairs(answers, self._config.preference_margin)
        margins = gain[better] - gain[worse]
        return {"preferred_share": _mean(margins > 0), "preferred_margin": _mean(margins)}


def rows_without_weight(answer: Answer, number: int) -> list[Row]:
    """Return the training sequences of answer `number`, with weight 0 on every token."""
    return [with_weight(Row(tokens, number, np.empty(0, np.float32)), 0.0) for tokens in answer.sequences]


def with_weight(row: Row, weight: float) -> Row:
    """Return the row with the same weight on every token."""
    return Row(row.tokens, row.attempt, np.full(row.tokens.trained.size, weight, dtype=np.float32))


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if values.numel() else 0.0


def _sum(values: Mapping[int, Tensor], rows: Sequence[int]) -> Tensor:
    return torch.stack([values[row].double().sum() for row in rows]).sum()
