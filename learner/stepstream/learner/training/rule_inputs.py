"""Add the inputs of advantage rules that need the policy: values, ratios and KL penalties.

groups → forward passes without gradient → inputs in each attempt's credit → rule
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stepstream.learner.advantages import Trajectory
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.kept_ids import KeptIds
from stepstream.learner.data.sequences import TokenSequence
from stepstream.learner.losses.ratios import log_ratio

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RuleInputs:
    """The inputs of an advantage rule for one update."""

    groups: list[list[Trajectory]]
    """Input of the rule, by group and attempt."""
    logprobs: Mapping[int, Tensor] = field(default_factory=dict)
    """log p of the trained tokens of each training sequence, by its number; empty: not needed."""
    values: Mapping[int, Floats] = field(default_factory=dict)
    """V before each trained token, by number of the sequence; empty: no critic."""
    distance: float = 0.0
    """Mean over all trained tokens of k1 = log p - log ref, in nats; 0: no penalty in the reward."""


def probes_of(attempts: Iterable[Attempt]) -> list[TokenSequence]:
    """Return the training sequences whose forward pass gives all inputs, in the order of the attempts.

    If an attempt was truncated, the sequence of its last step gets one more token, any one: it is predicted from the
    state in which the attempt was cut.
    """
    return [
        _with_extra_token(tokens) if number == _truncated_sequence(attempt) else tokens
        for attempt in attempts
        for number, tokens in enumerate(attempt.sequences)
    ]


def rule_inputs_of(groups: Sequence[Sequence[Attempt]], found: Mapping[int, Tensor]) -> RuleInputs:
    """Add the results of the probes to the attempts' credit.

    Args:
        groups: attempts by group.
        found: log p and, with a critic, V of each trained token; by number of the probe. Shape [trained, 1 or 2].
    """
    logprobs, values = {}, {}
    credits: list[list[Trajectory]] = []
    number = 0
    for group in groups:
        credits.append([])
        for attempt in group:
            probes = [found[number + index] for index in range(len(attempt.sequences))]
            trained = [each[: tokens.trained.size] for each, tokens in zip(probes, attempt.sequences, strict=True)]
            for each in trained:
                logprobs[number] = each[:, 0]
                if each.shape[1] > 1:
                    values[number] = each[:, 1].numpy()
                number += 1
            credit, cut = _credit_with_scores(attempt, trained), _truncated_sequence(attempt)
            if cut is not None and probes[cut].shape[1] > 1:
                credit = replace(credit, final_value=float(probes[cut][-1, 1]))
            credits[-1].append(credit)
    return RuleInputs(credits, logprobs, values)


def with_kl_penalty(
    inputs: RuleInputs,
    groups: Sequence[Sequence[Attempt]],
    logprobs: Mapping[int, Tensor],
    reference: Mapping[int, Tensor],
    weight: float,
) -> RuleInputs:
    """Add -β·k1 with k1 = log p - log ref to the reward of every trained token.

    This is the token-level penalty of REINFORCE++ (arXiv 2501.03262).

    Args:
        inputs: inputs so far.
        groups: attempts by group.
        logprobs: log p of the trained tokens of each training sequence, by its number.
        reference: log ref of the same.
        weight: β, in reward per nat.
    """
    number = count()
    penalised: list[list[Trajectory]] = []
    gaps = {row: log_ratio(logprobs[row], reference[row])[0].double().numpy() for row in logprobs}
    for group, credits in zip(groups, inputs.groups, strict=True):
        penalised.append([])
        for attempt, credit in zip(group, credits, strict=True):
            rewards = -weight * np.concatenate([np.empty(0), *(gaps[next(number)] for _ in attempt.sequences)])
            step_of_token = np.concatenate([np.empty(0, np.int64), *(tokens.steps for tokens in attempt.sequences)])
            steps = [
                replace(step, token_rewards=tuple(rewards[step_of_token == index].tolist()))
                for index, step in enumerate(credit.steps)
            ]
            penalised[-1].append(replace(credit, steps=tuple(steps)))
    every = np.concatenate([np.zeros(1), *gaps.values()])
    return replace(inputs, groups=penalised, logprobs=logprobs, distance=float(every.sum()) / max(1, every.size - 1))


def _credit_with_scores(attempt: Attempt, found: Sequence[Tensor]) -> Trajectory:
    """Return the credit with ratios and values by step; a step's V is that before its first trained token."""
    if not found:
        return attempt.credit
    own = torch.cat(list(found)).double().numpy()
    behaviour = np.concatenate([tokens.logprobs for tokens in attempt.sequences]).astype(np.float64)
    step_of_token = np.concatenate([tokens.steps for tokens in attempt.sequences])
    steps = list(attempt.credit.steps)
    for number in np.unique(step_of_token):
        at_step = step_of_token == number
        scored = replace(steps[number], log_ratio=float((own[at_step, 0] - behaviour[at_step]).sum()))
        if own.shape[1] > 1:
            values = own[at_step, 1].tolist()
            scored = replace(scored, value=values[0], token_values=tuple(values))
        steps[number] = scored
    return replace(attempt.credit, steps=tuple(steps))


def _truncated_sequence(attempt: Attempt) -> int | None:
    """Return the index of the training sequence at whose end an attempt was cut; None: not truncated or none."""
    if not attempt.credit.truncated or not attempt.sequences:
        return None
    return max(range(len(attempt.sequences)), key=lambda number: int(attempt.sequences[number].steps.max()))


def _with_extra_token(tokens: TokenSequence) -> TokenSequence:
    return TokenSequence(
        ids=np.append(tokens.ids, tokens.ids[-1]),
        trained=np.append(tokens.trained, tokens.ids.size),
        logprobs=np.append(tokens.logprobs, np.float32(0.0)),
        versions=np.append(tokens.versions, tokens.versions[-1]),
        steps=np.append(tokens.steps, tokens.steps[-1]),
        temperatures=None if tokens.temperatures is None else np.append(tokens.temperatures, np.float32(1.0)),
        kept=KeptIds.join([(tokens.kept, tokens.trained.size), (None, 1)]),
    )
