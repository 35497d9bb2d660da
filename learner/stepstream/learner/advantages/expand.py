"""Expand the advantages and value targets of steps to trained tokens."""

import numpy as np
import numpy.typing as npt

from stepstream.learner.advantages.base import Credit


def expand(credit: Credit, step_of_token: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the advantage of every trained token of a training sequence.

    Every token of a step gets the step's advantage, also where a step has spans of several policy versions. A token
    rule gives each token its own, in the order of sampling.

    Args:
        credit: credit of the attempt.
        step_of_token: index of each trained token's step; the trained tokens of a step are in one sequence.
            Shape [trained].

    Returns:
        Shape [trained].

    Raises:
        ValueError: the rule computed another number of advantages for a step than it has trained tokens.
    """
    if credit.tokens is None:
        return np.asarray(credit.steps, dtype=np.float64)[step_of_token]
    result = np.empty(step_of_token.size, dtype=np.float64)
    for step in np.unique(step_of_token):
        at_step = step_of_token == step
        own = credit.tokens[step]
        if int(at_step.sum()) != len(own):
            raise ValueError(f"step {step} has {int(at_step.sum())} trained tokens and {len(own)} advantages")
        result[at_step] = own
    return result


def expand_targets(credit: Credit, step_of_token: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the critic's value target before each trained token of a training sequence; NaN: no target there.

    A step rule has a target before the first trained token of each step, a token rule before every token.

    Args:
        credit: credit of the attempt.
        step_of_token: see `expand`.

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
