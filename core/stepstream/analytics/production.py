"""Compute signals of production: keep-rate, lift of a skill, recovered gap, learnability, deployment lag. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stepstream.analytics import bootstrap
from stepstream.analytics.estimate import Estimate, undefined
from stepstream.analytics.success import Attempts, wilson


class Proposal(NamedTuple):
    """Change that an agent proposed, in units such as lines."""

    proposed: int
    kept: int
    """Units that still exist at the age in question."""
    age: float
    """Seconds since the proposal."""


def keep_rate(proposals: Iterable[Proposal], age: float, *, seed: int = 0) -> Estimate:
    """Return kept / proposed units at `age` seconds (Cursor); younger changes are counted in `left_out`."""
    everything = list(proposals)
    old = [proposal for proposal in everything if proposal.age >= age]
    left_out = len(everything) - len(old)
    if not old:
        return undefined("no change is old enough", left_out=left_out)
    rate = bootstrap.ratio([p.kept for p in old], [p.proposed for p in old], seed=seed)
    return Estimate(rate.value, rate.low, rate.high, rate.n, rate.tasks, rate.reason, left_out)


def lift(on: Attempts, off: Attempts) -> Estimate:
    """Return p_on − p_off of a skill or memory that was switched at random by trajectory, with Newcombe's interval.

    All trajectories assigned count, with or without a retrieval. Interval: Newcombe 1998, method 10 (from Wilson's).
    """
    if not on.n or not off.n:
        return undefined("an arm has no trajectory", on.n + off.n)
    (p1, l1, u1), (p0, l0, u0) = ((arm.successes / arm.n, *wilson(arm.successes, arm.n)) for arm in (on, off))
    d = p1 - p0
    low = d - ((p1 - l1) ** 2 + (u0 - p0) ** 2) ** 0.5
    high = d + ((u1 - p1) ** 2 + (p0 - l0) ** 2) ** 0.5
    return Estimate(d, low, high, on.n + off.n, on.n + off.n)


def performance_gap_recovered(value: float, weak: float, strong: float) -> Estimate:
    """Return (x − weak)/(strong − weak) (arXiv:2312.09390); undefined where weak and strong are equal."""
    if strong == weak:
        return undefined("the weak and the strong model are equal")
    return Estimate((value - weak) / (strong - weak))


class Learnability(NamedTuple):
    """Mean p(1−p) of a task family, and the share of its groups whose attempts all ended alike (no gradient)."""

    learnability: Estimate
    without_variance: Estimate


def learnability(tasks: Mapping[str, Sequence[Attempts]], *, seed: int = 0) -> Learnability:
    """Return the learnability of a family. `tasks`: by task, its groups of attempts.

    p(1−p) is estimated without bias as c(n−c)/(n(n−1)) over a task's attempts, 2 or more; others are left out.
    Groups of one attempt are left out of `without_variance`.
    """
    values, attempts, alike, left_out = [], 0, [], 0
    for groups in tasks.values():
        n, c = sum(group.n for group in groups), sum(group.successes for group in groups)
        if n < 2:
            left_out += 1
            continue
        attempts += n
        values.append(c * (n - c) / (n * (n - 1)))
        shown = [group for group in groups if group.n >= 2]
        if shown:
            alike.append(sum(group.successes in {0, group.n} for group in shown) / len(shown))
    return Learnability(
        bootstrap.mean(values, n=attempts, left_out=left_out, seed=seed),
        bootstrap.mean(alike, n=attempts, left_out=len(tasks) - len(alike), seed=seed),
    )


def deployment_lag(created: float, served_since: Mapping[str, float | None]) -> Estimate:
    """Return seconds from a checkpoint event until all workers serve it; `served_since`: by worker, None: not yet."""
    if not served_since:
        return undefined("no worker")
    times = [at for at in served_since.values() if at is not None]
    if len(times) < len(served_since):
        return undefined(f"{len(served_since) - len(times)} workers do not serve it yet", len(served_since))
    return Estimate(max(times) - created, n=len(times))
