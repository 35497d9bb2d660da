"""How likely an agent's own responses look once it is known where they led: HCAPO's critic, which is the policy itself.

h_t = exp(mean_j log θ(y_j | s_t, s_final) / 5) (arXiv 2603.08754, eq. 6, with the temperature of its appendix C). The
paper puts the successful outcome into the prompt, and does not say where; here what the agent saw last stands for
s_final, and its tokens are put before the step's context.
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
    """The attempt's steps behind its final observation, as rows to be scored.

    The steps of a training sequence share a row as long as that has at most `most_tokens` tokens. A later step gets a
    row of its own, in which the oldest tokens of its context are left out; it gets none where its response alone is too
    long. Where only one step was trained on there is nothing to be compared, and no row.
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
        alone = []
        for step in np.unique(tokens.steps):
            here = tokens.steps == step
            if tokens.trained[here][-1] < room:
                fits |= here
            else:
                alone.append(here)
        rows += [_behind(ending, tokens, chosen, room) for chosen in (fits, *alone) if chosen.any()]
    return [row for row in rows if row is not None]


def with_hindsight(
    groups: Sequence[Sequence[Trajectory]], rows: Sequence[Sequence[TokenSequence]], found: Mapping[int, Tensor]
) -> list[list[Trajectory]]:
    """The credit of attempts with h of every step.

    A step that could not be scored has the mean of the attempt's others, which is neutral.

    Args:
        groups: what is known of the attempts already.
        rows: those of each attempt, as `hindsight_rows` gave them.
        found: log θ of the trained tokens of each row, by its number among all. Shape [trained].
    """
    numbers, owned = count(), iter(rows)
    return [
        [_told(credit, [(row, found[next(numbers)]) for row in next(owned)]) for credit in group] for group in groups
    ]


def final_observation(attempt: Attempt) -> npt.NDArray[np.int64]:
    """Tokens between the last step that was trained on and the one before it; the prompt where it begins a sequence."""
    last = max(attempt.sequences, key=lambda tokens: int(tokens.steps.max()))
    end = int(last.trained[last.steps == last.steps.max()][0])
    before = last.trained[last.trained < end]
    return last.ids[int(before[-1]) + 1 if before.size else 0 : end]


def _told(credit: Trajectory, scored: Sequence[tuple[TokenSequence, Tensor]]) -> Trajectory:
    said: defaultdict[int, list[float]] = defaultdict(list)
    for row, logprobs in scored:
        for step, logprob in zip(row.steps.tolist(), logprobs.tolist(), strict=True):
            said[step].append(logprob)
    scores = {step: hindsight_of(logprobs) for step, logprobs in said.items() if np.isfinite(logprobs).all()}
    neutral = total(scores.values()) / len(scores) if scores else 1.0
    steps = (replace(step, hindsight=scores.get(t, neutral)) for t, step in enumerate(credit.steps))
    return replace(credit, steps=tuple(steps))


def _behind(
    ending: npt.NDArray[np.int64], tokens: TokenSequence, chosen: npt.NDArray[np.bool_], room: int
) -> TokenSequence | None:
    """The chosen trained tokens with as much of their context as there is room for, behind the ending."""
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
