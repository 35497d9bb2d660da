"""Learning from which answers were better, without advantages: pairs (DPO), single judgements (KTO), imitation (SFT).

A preference loss is a function of sums: log θ of whole answers, and log ref of the same. Its gradient by an answer's
sum is one number, which then weighs all of the answer's tokens: so the sums are worked out first, without gradient,
and the pass with gradient can be cut into as many forward passes as memory asks for. The gradient is the same.
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
from stepstream.learner.data.learning_signal import differing_rewards
from stepstream.learner.data.sequences import TokenSequence
from stepstream.learner.losses import Batch, Reach, Terms
from stepstream.learner.losses.preferences import dpo, kto
from stepstream.learner.losses.ratios import log_ratio
from stepstream.learner.training.rows import Row

Loss = Callable[["Answers"], Tensor]


@dataclass(frozen=True, slots=True)
class Answer:
    """What is judged as one: the own responses of an attempt, or what somebody demonstrated in their place."""

    sequences: tuple[TokenSequence, ...]
    reward: float
    good: bool
    """Whether it reached its goal."""

    @property
    def sampled(self) -> bool:
        """Whether the policy itself, or an earlier version of it, gave this answer."""
        return all(bool(np.isfinite(tokens.logprobs).all()) for tokens in self.sequences)


def answers_of(attempt: Attempt) -> list[Answer]:
    """The answers of an attempt; what was demonstrated is good whatever became of the attempt."""
    own = Answer(attempt.sequences, attempt.reward, attempt.credit.succeeded)
    shown = Answer(attempt.demonstrations, attempt.reward, good=True)
    return [answer for answer in (own, shown) if answer.sequences]


def corrections_of(attempt: Attempt) -> list[list[Answer]]:
    """Of each demonstration a pair: what was demonstrated is better than the response in whose place it stands."""
    found = []
    for shown in attempt.demonstrations:
        own = (tokens.only(tokens.steps == shown.steps[0]) for tokens in attempt.sequences)
        worse = tuple(tokens for tokens in own if tokens.trained.size)
        found.append([Answer((shown,), math.inf, good=True), Answer(worse, -math.inf, good=False)])
    return found


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one gradient step. Tensors have the shape [answers]."""

    current: Tensor
    """log θ of all trained tokens together."""
    reference: Tensor
    """log ref of the same; zeros where the loss needs none."""
    tokens: Tensor
    """Trained tokens."""
    rewards: Tensor
    good: Tensor
    """Whether it reached its goal. Bool."""
    groups: Tensor
    """Number of what it is compared in: its group, or its pair."""
    sampled: Tensor
    """Whether the policy itself gave it. Bool."""


class Likelihood:
    """The objective J = A · log θ, of tokens whose weight in the loss is known."""

    proximal = "none"
    reach: Reach = "row"

    def terms(self, batch: Batch) -> Terms:
        """J of each token; the weights that are told are θ/μ."""
        weight = log_ratio(batch.current.detach(), batch.behaviour)[0].exp()
        nothing = torch.zeros_like(weight, dtype=torch.bool)
        return Terms(batch.advantage * batch.current, weight, nothing, nothing, nothing)


def pairs(answers: Answers, margin: float) -> tuple[Tensor, Tensor]:
    """Places of the better and the worse answer of every pair within a group whose rewards differ by more than this."""
    rewards, groups = answers.rewards.tolist(), answers.groups.tolist()
    found = [
        (better, worse)
        for better, worse in permutations(range(len(rewards)), 2)
        if groups[better] == groups[worse] and rewards[better] - rewards[worse] > margin
    ]
    chosen = torch.tensor(found, dtype=torch.int64).reshape(-1, 2)
    return chosen[:, 0], chosen[:, 1]


def loss_of(config: LearnerSettings) -> Loss:
    """The loss that `learner.objective` names, as a mean: over pairs (dpo), answers (kto) or tokens (sft)."""

    def pairwise(answers: Answers) -> Tensor:
        better, worse = pairs(answers, config.preference_margin)
        if not better.numel():
            return answers.current.sum() * 0.0
        now, ref = answers.current, answers.reference
        return dpo(now[better], now[worse], ref[better], ref[worse], config.preference_beta).mean()

    def single(answers: Answers) -> Tensor:
        # Of answers that are the policy's own, or nearly so, the mean of log θ/ref estimates KL(θ‖ref). Others tell
        # nothing of it: without any of its own the reference point is 0.
        own = answers.sampled.to(answers.current.dtype)
        kl = ((answers.current - answers.reference) * own).sum() / own.sum().clamp(min=1)
        weights = (config.preference_good, config.preference_bad)
        return kto(answers.current, answers.reference, answers.good, kl, config.preference_beta, *weights).mean()

    def imitation(answers: Answers) -> Tensor:
        tokens = (answers.tokens * answers.good).sum().clamp(min=1)
        return -(answers.current * answers.good).sum() / tokens

    return {"dpo": pairwise, "kto": single, "sft": imitation}[config.objective]


class Preference:
    """Turns groups into rows and weights for one preference loss."""

    def __init__(self, config: LearnerSettings) -> None:
        self._config, self._loss = config, loss_of(config)

    def compared(self, groups: Sequence[Sequence[Attempt]]) -> list[list[Answer]]:
        """The answers of some groups, those together that are compared with each other (kto, sft: judged at once)."""
        if self._config.objective != "dpo":
            return [[answer for attempt in group for answer in answers_of(attempt)] for group in groups]
        found: list[list[Answer]] = []
        for group in groups:
            if not differing_rewards(group, self._config.preference_margin):
                found.append([Answer(each.sequences, each.reward, each.credit.succeeded) for each in group])
            found += [pair for attempt in group for pair in corrections_of(attempt)]
        return found

    def parts(self, groups: Sequence[Sequence[object]], number: int) -> list[list[int]]:
        """Places in `groups` of what each gradient step of update `number` learns from: what is compared stays
        together."""
        order = list(range(len(groups)))
        random.Random(self._config.seed * 1_000_003 + number).shuffle(order)
        return [order[index :: self._config.minibatches] for index in range(min(self._config.minibatches, len(groups)))]

    def judge(
        self,
        groups: Sequence[Sequence[Answer]],
        rows: Sequence[Sequence[int]],
        current: Mapping[int, Tensor],
        reference: Mapping[int, Tensor],
    ) -> tuple[list[float], dict[str, float]]:
        """Weighs the answers of some groups.

        Args:
            groups: answers, those together that are compared.
            rows: numbers of the rows of each answer, in the order of the answers.
            current: log θ of the tokens of each row, by its number.
            reference: log ref of the same; empty where the loss needs none.

        Returns:
            The weight of each answer's log θ in what is maximised; and figures: `loss`; `preferred_share` of the pairs
            (dpo), or of the answers (kto), that the policy has in order, relative to the reference, for sft the share
            that is imitated; for dpo `preferred_margin`, by how much the better answers have become likelier than the
            worse, in nats, as the mean over pairs of the change of log θ/ref.
        """
        judged = [(number, answer) for number, group in enumerate(groups) for answer in group]
        sums = torch.stack([_sum(current, own) for own in rows]).requires_grad_()
        before = [_sum(reference, own) for own in rows] if reference else []
        answers = Answers(
            current=sums,
            reference=torch.stack(before) if before else torch.zeros_like(sums),
            tokens=torch.tensor([sum(current[row].numel() for row in own) for own in rows], dtype=torch.float64),
            rewards=torch.tensor([answer.reward for _, answer in judged], dtype=torch.float64),
            good=torch.tensor([answer.good for _, answer in judged]),
            groups=torch.tensor([number for number, _ in judged]),
            sampled=torch.tensor([answer.sampled for _, answer in judged]),
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


def unweighed_rows(answer: Answer, number: int) -> list[Row]:
    """The training sequences of the answer of this number, with a weight of 0 on every token."""
    return [weighed(Row(tokens, number, np.empty(0, np.float32)), 0.0) for tokens in answer.sequences]


def weighed(row: Row, weight: float) -> Row:
    """The row with the same weight on every token."""
    return Row(row.tokens, row.attempt, np.full(row.tokens.trained.size, weight, dtype=np.float32))


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if values.numel() else 0.0


def _sum(values: Mapping[int, Tensor], rows: Sequence[int]) -> Tensor:
    return torch.stack([values[row].double().sum() for row in rows]).sum()
