"""From advantages of steps to advantages of trained tokens."""

import numpy as np
import numpy.typing as npt

from stepstream.learner.advantages.base import Credit


def expand(credit: Credit, step_of_token: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The advantage of every trained token of a training sequence.

    A step's spans, one for each run of one policy version, all get the step's advantage; a rule that differs inside a
    step gives its tokens theirs in the order in which they were sampled.

    Args:
        credit: of the attempt.
        step_of_token: index of the step that each trained token belongs to, in order of the tokens; the trained
            tokens of a step lie in one sequence. Shape [trained].

    Returns:
        Shape [trained].

    Raises:
        ValueError: a step has another number of trained tokens than the rule was told.
    """
    if credit.tokens is None:
        return np.asarray(credit.steps, dtype=np.float64)[step_of_token]
    result = np.empty(step_of_token.size, dtype=np.float64)
    for step in np.unique(step_of_token):
        here = step_of_token == step
        own = credit.tokens[step]
        if int(here.sum()) != len(own):
            raise ValueError(f"step {step} has {int(here.sum())} trained tokens here, and {len(own)} advantages")
        result[here] = own
    return result


def expand_targets(credit: Credit, step_of_token: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """What a critic should have said before each trained token of a training sequence; NaN where it is not asked.

    A rule by steps asks it before the first trained token of each step, a rule by tokens before every one.

    Args:
        credit: of the attempt.
        step_of_token: as for `expand`.

    Returns:
        Shape [trained].
    """
    result = np.full(step_of_token.size, np.nan)
    if not credit.targets:
        return result
    targets = np.asarray(credit.targets, dtype=np.float64)
    if credit.tokens is None:
        steps, first = np.unique(step_of_token, return_index=True)
        result[first] = targets[steps]
        return result
    ends = np.cumsum([len(own) for own in credit.tokens])
    for step in np.unique(step_of_token):
        result[step_of_token == step] = targets[ends[step] - len(credit.tokens[step]) : ends[step]]
    return result
