"""What advantage rules need beside rewards, states and actions: found out with the policy before credit is given.

groups → forward passes without gradient → values, ratios and hindsight in each attempt's credit → rule
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
from stepstream.learner.data.sequences import TokenSequence
from stepstream.learner.losses.ratios import log_ratio

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RuleInputs:
    """What is known before an update's credit is given."""

    groups: list[list[Trajectory]]
    """What the rule sees, by group and attempt."""
    logprobs: Mapping[int, Tensor] = field(default_factory=dict)
    """log p of the trained tokens of each training sequence, by its number; empty where no rule asked."""
    values: Mapping[int, Floats] = field(default_factory=dict)
    """V before each of them; empty without a critic."""
    distance: float = 0.0
    """Mean over all of them of k1 = log p - log ref, in nats; 0 where nearness to a reference is not paid for."""


def probes_of(attempts: Iterable[Attempt]) -> list[TokenSequence]:
    """The attempts' training sequences in order, so that what is predicted with them tells all that is needed.

    Where an attempt was cut, the sequence of its last step goes on by one token, any one: it is predicted from the
    state in which the attempt was cut.
    """
    return [
        _prolonged(tokens) if number == _cut_at(attempt) else tokens
        for attempt in attempts
        for number, tokens in enumerate(attempt.sequences)
    ]


def rule_inputs_of(groups: Sequence[Sequence[Attempt]], found: Mapping[int, Tensor]) -> RuleInputs:
    """Lays what was found with the probes into the attempts' credit.

    Args:
        groups: attempts by group.
        found: of each trained token log p and, with a critic, V; by number of the probe. Shape [trained, 1 or 2].
    """
    logprobs, values = {}, {}
    seen: list[list[Trajectory]] = []
    number = 0
    for group in groups:
        seen.append([])
        for attempt in group:
            whole = [found[number + place] for place in range(len(attempt.sequences))]
            kept = [each[: tokens.trained.size] for each, tokens in zip(whole, attempt.sequences, strict=True)]
            for each in kept:
                logprobs[number] = each[:, 0]
                if each.shape[1] > 1:
                    values[number] = each[:, 1].numpy()
                number += 1
            credit, cut = _told(attempt, kept), _cut_at(attempt)
            if cut is not None and whole[cut].shape[1] > 1:
                credit = replace(credit, final_value=float(whole[cut][-1, 1]))
            seen[-1].append(credit)
    return RuleInputs(seen, logprobs, values)


def penalised(
    evidence: RuleInputs,
    groups: Sequence[Sequence[Attempt]],
    logprobs: Mapping[int, Tensor],
    reference: Mapping[int, Tensor],
    weight: float,
) -> RuleInputs:
    """Rewards every trained token with -β·k1 too, k1 = log p - log ref (the token-level penalty of
    REINFORCE++, arXiv 2501.03262).

    Args:
        evidence: what is known so far.
        groups: attempts by group.
        logprobs: log p of the trained tokens of each training sequence, by its number.
        reference: log ref of the same.
        weight: β, in reward a nat.
    """
    number = count()
    seen: list[list[Trajectory]] = []
    gaps = {row: log_ratio(logprobs[row], reference[row])[0].double().numpy() for row in logprobs}
    for group, credits in zip(groups, evidence.groups, strict=True):
        seen.append([])
        for attempt, credit in zip(group, credits, strict=True):
            paid = -weight * np.concatenate([np.empty(0), *(gaps[next(number)] for _ in attempt.sequences)])
            step_of_token = np.concatenate([np.empty(0, np.int64), *(tokens.steps for tokens in attempt.sequences)])
            steps = [
                replace(step, token_rewards=tuple(paid[step_of_token == place].tolist()))
                for place, step in enumerate(credit.steps)
            ]
            seen[-1].append(replace(credit, steps=tuple(steps)))
    every = np.concatenate([np.zeros(1), *gaps.values()])
    return replace(evidence, groups=seen, logprobs=logprobs, distance=float(every.sum()) / max(1, every.size - 1))


def _told(attempt: Attempt, found: Sequence[Tensor]) -> Trajectory:
    """Ratios and values by step; V of a step's state is that before its first trained token."""
    if not found:
        return attempt.credit
    own = torch.cat(list(found)).double().numpy()
    behaviour = np.concatenate([tokens.logprobs for tokens in attempt.sequences]).astype(np.float64)
    step_of_token = np.concatenate([tokens.steps for tokens in attempt.sequences])
    steps = list(attempt.credit.steps)
    for number in np.unique(step_of_token):
        here = step_of_token == number
        told = replace(steps[number], log_ratio=float((own[here, 0] - behaviour[here]).sum()))
        if own.shape[1] > 1:
            values = own[here, 1].tolist()
            told = replace(told, value=values[0], token_values=tuple(values))
        steps[number] = told
    return replace(attempt.credit, steps=tuple(steps))


def _cut_at(attempt: Attempt) -> int | None:
    """Number of the training sequence at whose end an attempt was cut; None: it ended by itself, or has none."""
    if not attempt.credit.truncated or not attempt.sequences:
        return None
    return max(range(len(attempt.sequences)), key=lambda number: int(attempt.sequences[number].steps.max()))


def _prolonged(tokens: TokenSequence) -> TokenSequence:
    return TokenSequence(
        ids=np.append(tokens.ids, tokens.ids[-1]),
        trained=np.append(tokens.trained, tokens.ids.size),
        logprobs=np.append(tokens.logprobs, np.float32(0.0)),
        versions=np.append(tokens.versions, tokens.versions[-1]),
        steps=np.append(tokens.steps, tokens.steps[-1]),
    )
