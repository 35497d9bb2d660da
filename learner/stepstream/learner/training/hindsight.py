"""Score an agent's responses with the policy itself, given the final observation: HCAPO's default critic.

h_t = exp(mean_j log θ(y_j | s_t, s_final) / 5) (arXiv 2603.08754, eq. 6, with the temperature of its appendix C). The
paper puts the successful outcome into the prompt without naming the place. Here the agent's last observation represents
s_final, and its tokens are put before the step's context. It is a score and no ratio, so its temperature is 1.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import numpy.typing as npt
from torch import Tensor

from stepstream.learner.advantages import Trajectory, hindsight_of
from stepstream.learner.advantages.arithmetic import total
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.sequences import TokenSequence


def hindsight_rows(attempt: Attempt, most_tokens: int) -> list[TokenSequence]:
    """Return rows with the attempt's steps behind its final observation.

    The steps of a training sequence share a row of at most `most_tokens` tokens. A later step gets a row of its own,
    without the oldest tokens of its context; it gets none if its response alone is too long. An attempt with only one
    trained step gets no row: its score would have no other to be compared with.
    """
    if np.unique(np.concatenate([tokens.steps for tokens in attempt.sequences])).size < 2:
        return []
    ending = final_observation(attempt)
    room = most_tokens - ending.size
    if room <= 0 or not ending.size:
        return []
    rows = []
    for tokens in attempt.sequences:
        fits = np.zeros(tokens.trained.size, dtype=np.bool_)
        single_steps = []
        for step in np.unique(tokens.steps):
            at_step = tokens.steps == step
            if tokens.trained[at_step][-1] < room:
                fits |= at_step
            else:
                single_steps.append(at_step)
        rows += [_row_behind(ending, tokens, chosen, room) for chosen in (fits, *single_steps) if chosen.any()]
    return [row for row in rows if row is not None]


def with_hindsight(
    groups: Sequence[Sequence[Trajectory]], rows: Sequence[Sequence[TokenSequence]], found: Mapping[int, Tensor]
) -> list[list[Trajectory]]:
    """Return the credit of attempts with h of every step.

    A step without a score gets the mean of the attempt's other steps, which is neutral.

    Args:
        groups: credit of the attempts so far, by group.
        rows: rows of each attempt, from `hindsight_rows`.
        found: log θ of the trained tokens of each row, by its number among all rows. Shape [trained].
    """
    numbers, owned = count(), iter(rows)
    return [
        [_credit_with_hindsight(credit, [(row, found[next(numbers)]) for row in next(owned)]) for credit in group]
        for group in groups
    ]


def final_observation(attempt: Attempt) -> npt.NDArray[np.int64]:
    """Return the tokens between the last trained step and the one before it, or its prompt if it begins a sequence."""
    last = max(attempt.sequences, key=lambda tokens: int(tokens.steps.max()))
    end = int(last.trained[last.steps == last.steps.max()][0])
    before = last.trained[last.trained < end]
    return last.ids[int(before[-1]) + 1 if before.size else 0 : end]


def _credit_with_hindsight(credit: Trajectory, scored: Sequence[tuple[TokenSequence, Tensor]]) -> Trajectory:
    logprobs_by_step: defaultdict[int, list[float]] = defaultdict(list)
    for row, logprobs in scored:
        for step, logprob in zip(row.steps.tolist(), logprobs.tolist(), strict=True):
            logprobs_by_step[step].append(logprob)
    scores = {
        step: hindsight_of(logprobs) for step, logprobs in logprobs_by_step.items() if np.isfinite(logprobs).all()
    }
    neutral = total(scores.values()) / len(scores) if scores else 1.0
    steps = (replace(step, hindsight=scores.get(t, neutral)) for t, step in enumerate(credit.steps))
    return replace(credit, steps=tuple(steps))


def _row_behind(
    ending: npt.NDArray[np.int64], tokens: TokenSequence, chosen: npt.NDArray[np.bool_], room: int
) -> TokenSequence | None:
    """Return the chosen trained tokens behind the ending, with as much of their context as fits; None if none fits."""
    trained = tokens.trained[chosen]
    end = int(trained[-1]) + 1
    start = max(0, end - room)
    if trained[0] < start:
        return None
    return TokenSequence(
        ids=np.concatenate([ending, tokens.ids[start:end]]),
        trained=trained - start + ending.size,
        logprobs=tokens.logprobs[chosen],
        versions=tokens.versions[chosen],
        steps=tokens.steps[chosen],
    )
