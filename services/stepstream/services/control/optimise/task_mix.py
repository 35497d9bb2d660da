"""Weigh task families of a training fleet towards the edge of ability, with alarms for collapse. Pure.

A group of attempts yields a gradient only if its attempts differ, and its variance is p(1−p) (METRICS H). Families are
weighed by the posterior mean of p(1−p) of their tasks under Jeffreys' prior, so that an untried family is worth 0.125
and gets its share. A floor for each family keeps what is solved, or too hard now, in sight.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepstream.analytics.success import Attempts, wilson

FLOOR = 0.2
"""Share of the draws that all families have equally."""
MIN_EFFECTIVE_SHARE = 0.25
"""Effective number of families over their number, below which the mix has collapsed."""
MIN_VARIED = 0.1
"""Share of tasks with different outcomes of their attempts; if its Wilson bound is below, nothing is learnable."""
_PRIOR = 0.5


@dataclass(frozen=True, slots=True)
class TaskMix:
    """Weights of task families."""

    weights: dict[str, float]
    """By family; their sum is 1."""
    learnability: dict[str, float]
    """Posterior mean of p(1−p), 0 to 0.25."""
    effective_share: float
    """exp(entropy of the weights) over the number of families, in (0, 1]."""
    alarms: tuple[str, ...]
    """Signs of collapse, in words; empty: none."""


def task_mix(
    families: Mapping[str, Sequence[Attempts]], covered: Mapping[str, int], *, floor: float = FLOOR
) -> TaskMix:
    """Return the weights of the families that are served.

    Args:
        families: attempts of each task, by family; empty: nothing of it was attempted.
        covered: training attempts of the window by family, to find families that training forgot.
        floor: share of the draws that all families have equally, in [0, 1].

    Raises:
        ValueError: there is no family, or the floor is not in [0, 1].
    """
    if not families or not 0 <= floor <= 1:
        raise ValueError(f"{len(families)} families with a floor of {floor:g}: one, and a floor in [0, 1] are needed")
    scores = {name: learnability(tasks) for name, tasks in sorted(families.items())}
    total = math.fsum(scores.values())
    weights = {name: floor / len(scores) + (1 - floor) * score / total for name, score in scores.items()}
    effective = effective_families(weights) / len(weights)
    return TaskMix(weights, scores, effective, tuple(_alarms(families, weights, covered, effective)))


def learnability(tasks: Sequence[Attempts]) -> float:
    """Return the mean over tasks of the posterior mean of p(1−p); without a task, that of the prior.

    For p ~ Beta(a, b), E[p(1−p)] = ab/((a+b)(a+b+1)). Tasks with one attempt count as attempts at one task, since one
    attempt alone says nothing about p(1−p).
    """
    once = [task for task in tasks if task.n == 1]
    repeated = [(1, task) for task in tasks if task.n > 1]
    pooled = Attempts(len(once), sum(task.successes for task in once))
    weighed = [*repeated, (len(once), pooled)] if once else repeated or [(1, Attempts(0, 0))]
    return math.fsum(n * _posterior_mean(task) for n, task in weighed) / sum(n for n, _ in weighed)


def _posterior_mean(task: Attempts) -> float:
    a, b = task.successes + _PRIOR, task.n - task.successes + _PRIOR
    return a * b / ((a + b) * (a + b + 1))


def effective_families(weights: Mapping[str, float]) -> float:
    """Return exp of the entropy of weights whose sum is 1: the number of equal families with that entropy."""
    return math.exp(-math.fsum(weight * math.log(weight) for weight in weights.values() if weight > 0))


def _alarms(
    families: Mapping[str, Sequence[Attempts]],
    weights: Mapping[str, float],
    covered: Mapping[str, int],
    effective: float,
) -> list[str]:
    alarms = []
    if len(weights) > 1 and effective < MIN_EFFECTIVE_SHARE:
        alarms.append(f"the weights are worth {effective:.0%} of the families, below {MIN_EFFECTIVE_SHARE:.0%}")
    repeated = [task for tasks in families.values() for task in tasks if task.n > 1]
    varied = sum(0 < task.successes < task.n for task in repeated)
    if repeated and wilson(varied, len(repeated))[1] < MIN_VARIED:
        alarms.append(f"{varied} of {len(repeated)} tasks vary in outcome: no family is at the edge of ability")
    total = sum(covered.values())
    sampled = {name: n / total for name, n in covered.items() if n} if total else {}
    if len(weights) > 1 and sampled and effective_families(sampled) / len(weights) < MIN_EFFECTIVE_SHARE:
        alarms.append(
            f"training attempts are worth {effective_families(sampled):.1f} of {len(weights)} families: "
            "sampling has collapsed"
        )
    return alarms
