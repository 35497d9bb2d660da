"""Tells when what is rewarded rises while a guard falls: the sign of a reward that is gamed. Pure.

A cohort's periods (a policy version in one hour), in order, are cut into windows of at least `AlarmsSettings.window` groups;
the newest window counts once a later period has begun. Each window is compared with those 1, 2, 4, 8, … before it, so
that a slow drift shows as well as a jump. An alarm is raised for a guard where, between two windows, both

- a rewarded series (a component that is paid, or the whole reward) rose, and
- the guard (a guard or shadow component, in the direction that is worse, or success) fell,

each by at least `AlarmsSettings.smallest_effect` standard deviations and with a one-sided p-value below a threshold. It stands
until either has lost half of its change, or until the window that it was compared with is `AlarmsSettings.history` windows old.

The threshold makes the chance that an unchanged cohort *ever* raises an alarm at most `AlarmsSettings.level`, however long it
is watched: of that level, the k-th window gets 1 / (k (k + 1)) (which sums to 1), each of its L comparisons an L-th,
and each of the M series an M-th. A pair of series needs no more: a wrong alarm needs at least one of two tests to be
wrong (an intersection–union test, Berger 1982).

What stands is a function of the sums alone: neither the order nor the number of times that they come matters.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stepstream.config import AlarmsSettings
from stepstream.jobs.rewards.spec import CORRECTION
from stepstream.jobs.statistics.moments import Moments, effect, p_rise

REWARD, SUCCESS = "reward", "success"
"""Kinds of the series that are no components."""
_PAID = frozenset({"term", "raw", "shaping"})
_GUARDS = frozenset({"guard", "shadow", SUCCESS})
_BACK = tuple(2**power for power in range(20))
"""How many windows back a window is compared with, as far as there are so many."""


class Series(NamedTuple):
    """What is followed: a reward component, the whole reward, or success."""

    kind: str
    name: str
    weight: float
    direction: int
    """1: more is better; -1: less is better."""

    @property
    def paid(self) -> bool:
        """Whether it may be what an agent learns to raise."""
        return self.kind == REWARD or (self.kind in _PAID and self.weight != 0.0)

    @property
    def guard(self) -> bool:
        """Whether it should not become worse. A correction by a cap is none: it follows from what is capped."""
        return self.kind in _GUARDS and not self.name.startswith(CORRECTION)


class Period(NamedTuple):
    """Trajectories of one policy version (-1: the model tells none) that ended in one hour since the Unix epoch."""

    version: int
    hour: int


Sums = Mapping[Series, Moments]


@dataclass(frozen=True)
class Window:
    """Some periods in a row, with their sums."""

    first: Period
    last: Period
    sums: Sums


@dataclass(frozen=True)
class Finding:
    """What an alarm is raised for."""

    rising: Series
    falling: Series
    before: Window
    after: Window
    p_value: float
    threshold: float


def windows(periods: Mapping[Period, Sums], size: int) -> list[Window]:
    """The windows that are complete, in order: each as short as it can be with at least `size` groups."""
    found: list[Window] = []
    open_since: Period | None = None
    sums: dict[Series, Moments] = {}
    groups = 0
    *known, _newest = sorted(periods) or [Period(-1, 0)]
    for period in known:
        open_since = open_since or period
        for series, moments in periods[period].items():
            sums[series] = sums.get(series, Moments()) + moments
        groups = max((moments.groups for series, moments in sums.items() if series.kind == REWARD), default=0)
        if groups >= size:
            found.append(Window(open_since, period, sums))
            open_since, sums = None, {}
    return found


def standing(periods: Mapping[Period, Sums], rule: AlarmsSettings) -> list[Finding]:
    """The alarms that stand after the newest complete window, by the name of what fell."""
    found = windows(periods, rule.window)
    held: dict[Series, tuple[int, Finding]] = {}
    for at in range(max(0, len(found) - rule.history), len(found)):
        window = found[at]
        held = {
            guard: (base, finding)
            for guard, (base, finding) in held.items()
            if at - base < rule.history and _persists(finding, window)
        }
        for base, finding in _raised(found, at, rule):
            held.setdefault(finding.falling, (base, finding))
    return [finding for _, (_, finding) in sorted(held.items())]


def _raised(found: Sequence[Window], at: int, rule: AlarmsSettings) -> list[tuple[int, Finding]]:
    """What may be raised at one window, with the place of the window that it is compared with; the surest first."""
    after = found[at]
    bases = [at - back for back in _BACK if back <= min(at, rule.history)]
    if not bases:
        return []
    threshold = rule.level / (at * (at + 1)) / len(bases) / sum(series.paid + series.guard for series in after.sums)
    raised = []
    for base in bases:
        before = found[base]
        falls = [(p, series) for p, series in _worse(before, after, rule) if p < threshold]
        rises = [(p, series) for p, series in _higher(before, after, rule) if p < threshold] if falls else []
        for fall, guard in falls:
            # A component that rose says more than the whole reward.
            others = [(series.kind == REWARD, p, series) for p, series in rises if series.name != guard.name]
            if others:
                _, rise, rising = min(others)
                p_value = max(rise, fall)
                raised.append((p_value, base, Finding(rising, guard, before, after, p_value, threshold)))
    raised.sort(key=lambda each: (each[0], each[1], each[2].falling))
    return [(base, finding) for _, base, finding in raised]


def _worse(before: Window, after: Window, rule: AlarmsSettings) -> Iterator[tuple[float, Series]]:
    """The guards with the p-value that they fell."""
    for series in after.sums:
        if series.guard:
            yield _p_value(before, after, series, -series.direction, rule), series


def _higher(before: Window, after: Window, rule: AlarmsSettings) -> Iterator[tuple[float, Series]]:
    """What is paid, with the p-value that it came to pay more."""
    for series in after.sums:
        if series.paid:
            yield _p_value(before, after, series, series.direction, rule), series


def _p_value(before: Window, after: Window, series: Series, sign: int, rule: AlarmsSettings) -> float:
    """p-value that a mean rose (`sign` 1) or fell (-1); 1 where by less than is worth an alarm."""
    one, two = before.sums.get(series, Moments()), after.sums[series]
    if not one.trajectories or not two.trajectories or sign * effect(one, two) < rule.smallest_effect:
        return 1.0
    return p_rise(one, two) if sign > 0 else p_rise(two, one)


def _persists(finding: Finding, now: Window) -> bool:
    """Whether both series still show at least half of the change that raised the alarm."""
    return all(_kept(finding, now, series) >= 0.5 for series in (finding.rising, finding.falling))


def _kept(finding: Finding, now: Window, series: Series) -> float:
    """Share of a series' change that is still there; all of it where the series is not known now."""
    moments = now.sums.get(series, Moments())
    if not moments.trajectories:
        return 1.0
    before = finding.before.sums[series].mean
    return (moments.mean - before) / (finding.after.sums[series].mean - before)


def merge(parts: Iterable[Sums]) -> dict[Series, Moments]:
    """Sums over partitions."""
    whole: dict[Series, Moments] = {}
    for part in parts:
        for series, moments in part.items():
            whole[series] = whole.get(series, Moments()) + moments
    return whole
