"""Choose a candidate on one part of the recorded prompts and measure its gain on another (METRICS G)."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepstream.analytics import bootstrap
from stepstream.analytics.coin_flip import MIN_GAIN
from stepstream.analytics.estimate import FEW_TASKS, Estimate, undefined
from stepstream.services.control.optimise.records import Answerer, Attempt, CannotSearch, Meter, Parts, Trial
from stepstream.topics.events import Harness


@dataclass(frozen=True, slots=True)
class Headroom:
    """Result of the test."""

    chosen: int
    """Index of the candidate that was best on the choosing part."""
    gain: Estimate
    """Gain over the parent on the confirming part: mean over tasks, with a paired bootstrap interval."""

    @property
    def found(self) -> bool:
        """True if the gain is at least 2 points and its lower bound above 0, over 10 tasks or more."""
        return confirmed(self.gain)


def confirmed(gain: Estimate) -> bool:
    """Return True if a gain is worth a canary."""
    return gain.value is not None and gain.low is not None and gain.value >= MIN_GAIN and gain.low > 0


def measure(answer: Answerer, parent: Harness, candidates: Sequence[Harness], parts: Parts, meter: Meter) -> Headroom:
    """Choose among candidates and confirm the choice, within the budget.

    Raises:
        CannotSearch: a part has fewer than 10 tasks, or the budget covers fewer prompts.
    """
    prompts = meter.calls_left // (len(candidates) + 3)
    choosing, confirming = parts.choosing[:prompts], parts.confirming[:prompts]
    check_tasks(choosing, "choose")
    check_tasks(confirming, "confirm")
    before = answer(parent, choosing, meter)
    means = [gain(before, answer(one, choosing, meter), choosing).value for one in candidates]
    chosen = max(range(len(candidates)), key=lambda i: (means[i] is not None, means[i] or 0.0))
    return Headroom(chosen, confirm(answer, parent, candidates[chosen], confirming, meter))


def confirm(
    answer: Answerer, parent: Harness, candidate: Harness, attempts: Sequence[Attempt], meter: Meter
) -> Estimate:
    """Return the gain of a candidate over the parent on the same prompts."""
    return gain(answer(parent, attempts, meter), answer(candidate, attempts, meter), attempts)


def gain(before: Sequence[Trial], after: Sequence[Trial], attempts: Sequence[Attempt]) -> Estimate:
    """Return the paired gain: mean over tasks; prompts that one of both has no score for are left out."""
    by_task = gains_by_task(before, after, attempts)
    n = sum(map(len, by_task.values()))
    if len(by_task) < FEW_TASKS:
        reason = f"{len(by_task)} tasks have a score; an interval needs {FEW_TASKS}"
        return undefined(reason, n, len(by_task), len(attempts) - n)
    means = [sum(gains) / len(gains) for gains in by_task.values()]
    return bootstrap.mean(means, n=n, left_out=len(attempts) - n)


def gains_by_task(
    before: Sequence[Trial], after: Sequence[Trial], attempts: Sequence[Attempt]
) -> dict[str, list[float]]:
    """Return the differences of scores by task; prompts that one of both has no score for are left out."""
    by_task: dict[str, list[float]] = {}
    for one, other, attempt in zip(before, after, attempts, strict=True):
        if one.score is not None and other.score is not None:
            by_task.setdefault(attempt.task, []).append(other.score - one.score)
    return by_task


def check_tasks(attempts: Sequence[Attempt], purpose: str) -> None:
    """Refuse a part that is too small.

    Raises:
        CannotSearch: it has fewer than 10 tasks.
    """
    tasks = len({attempt.task for attempt in attempts})
    if tasks < FEW_TASKS:
        raise CannotSearch(
            f"{tasks} tasks to {purpose} on, {FEW_TASKS} are needed: record more trajectories with an outcome, "
            "or raise the budget of calls"
        )
