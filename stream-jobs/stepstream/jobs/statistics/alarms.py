"""Detect that a rewarded series rises while a guard falls, the sign of a gamed reward. Pure.

The periods of a cohort (a policy version in one hour), in order, are cut into windows of at least
`AlarmsSettings.window` groups. The newest window counts once a later period has begun. A version that was taken back
is a window of its own and counts at once: nobody is served by it any more. Each window is compared with those 1, 2, 4,
8, … before it, so that a slow drift shows as well as a jump, but never with a version that was taken back. An alarm is
raised for a guard if, between two windows, both

- a rewarded series (a component that is paid, or the whole reward) rose, and
- the guard (a guard or shadow component, in the direction that is worse, or success) fell,

each by at least `AlarmsSettings.smallest_effect` standard deviations and with a one-sided p-value below a threshold. It
stays active until either series has lost half of its change in a version that was not taken back, or until its base
window is `AlarmsSettings.history` windows old.

The threshold makes the chance that an unchanged cohort *ever* raises an alarm at most `AlarmsSettings.level`, at any
length of observation: of that level, the k-th window gets 1 / (k (k + 1)) (which sums to 1), each of its L comparisons
an L-th, and each of the M series an M-th. A pair of series needs no further correction: a wrong alarm needs at least
one of two wrong tests (an intersection–union test, Berger 1982).

The active alarms depend on the sums alone, not on the order or number of their arrivals.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from stepstream.config import AlarmsSettings
from stepstream.jobs.rewards.spec import CORRECTION
from stepstream.jobs.statistics.moments import Moments, effect, p_rise

REWARD, SUCCESS = "reward", "success"
"""Kinds of the series that are not components."""
_PAID = frozenset({"term", "raw", "shaping"})
GUARDS = frozenset({"guard", "shadow", SUCCESS})
"""Kinds of the series whose fall is an alarm."""
_BASE_DISTANCES = tuple(2**power for power in range(20))
"""Distances, in windows, of the base windows that a window is compared with."""


class Series(NamedTuple):
    """Reward component, the whole reward, or success."""

    kind: str
    name: str
    weight: float
    direction: int
    """1: more is better; -1: less is better."""

    @property
    def paid(self) -> bool:
        """True if an agent may learn to raise it."""
        return self.kind == REWARD or (self.kind in _PAID and self.weight != 0.0)

    @property
    def guard(self) -> bool:
        """True if it should not become worse. The correction of a cap is not a guard: it follows from the capped
        component.
        """
        return self.kind in GUARDS and not self.name.startswith(CORRECTION)


class Period(NamedTuple):
    """Trajectories of one policy version (-1: unknown) that ended in one hour since the Unix epoch."""

    version: int
    hour: int


Sums = Mapping[Series, Moments]
NO_VERSION: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Window:
    """Consecutive periods with their sums."""

    first: Period
    last: Period
    sums: Sums
    taken_back: bool = False
    """True for all trajectories of a version that was taken back."""


@dataclass(frozen=True)
class Finding:
    """Reason for an alarm."""

    rising: Series
    falling: Series
    before: Window
    after: Window
    p_value: float
    threshold: float


def windows(periods: Mapping[Period, Sums], size: int, taken_back: Set[int] = NO_VERSION) -> list[Window]:
    """Return the complete windows in order, each as short as possible with at least `size` groups.

    A version that was taken back is one window of any length; its neighbours share windows across it.
    """
    newest = max(periods, default=None)
    found: list[Window] = []
    open_since: Period | None = None
    sums: Sums = {}
    for period in sorted(period for period in periods if period.version not in taken_back and period != newest):
        open_since = open_since or period
        sums = merge_sums([sums, periods[period]])
        if groups_in(sums) >= size:
            found.append(Window(open_since, period, sums))
            open_since, sums = None, {}
    for version in taken_back:
        own = sorted(period for period in periods if period.version == version)
        sums = merge_sums(periods[period] for period in own)
        if groups_in(sums) >= size:
            found.append(Window(own[0], own[-1], sums, taken_back=True))
    return sorted(found, key=lambda window: window.last)


def groups_in(sums: Sums) -> int:
    """Return the number of groups of attempts in sums."""
    return max((moments.groups for series, moments in sums.items() if series.kind == REWARD), default=0)


def needed_since(
    periods: Mapping[Period, Sums], rule: AlarmsSettings, taken_back: Set[int] = NO_VERSION
) -> tuple[int, Period]:
    """Return how many of the oldest windows no comparison needs any more, and the first period after them.

    The newest `history` windows are compared with bases up to `history` windows before them.
    """
    found = windows(periods, rule.window, taken_back)
    surplus = max(0, len(found) - 2 * rule.history)
    return surplus, min(window.first for window in found[surplus:]) if surplus else Period(-1, 0)


def active_alarms(
    periods: Mapping[Period, Sums], rule: AlarmsSettings, forgotten: int = 0, taken_back: Set[int] = NO_VERSION
) -> list[Finding]:
    """Return the alarms that are active after the newest complete window, by the name of the series that fell.

    Args:
        periods: sums by period.
        rule: settings.
        forgotten: number of older windows, as `needed_since`, whose periods were removed.
        taken_back: versions that were taken back.
    """
    found = windows(periods, rule.window, taken_back)
    active: dict[Series, tuple[int, Finding]] = {}
    for at in range(max(0, len(found) - rule.history), len(found)):
        window = found[at]
        active = {
            guard: (base, finding)
            for guard, (base, finding) in active.items()
            if at - base < rule.history and (window.taken_back or _persists(finding, window))
        }
        for base, finding in _findings_at(found, at, rule, forgotten):
            active.setdefault(finding.falling, (base, finding))
    return [finding for _, (_, finding) in sorted(active.items())]


def _findings_at(found: Sequence[Window], at: int, rule: AlarmsSettings, forgotten: int) -> list[tuple[int, Finding]]:
    """Return the findings at one window, each with the index of its base window, the smallest p-value first."""
    after = found[at]
    earlier = [base for base in range(at) if not found[base].taken_back]
    bases = [earlier[-back] for back in _BASE_DISTANCES if back <= min(len(earlier), rule.history)]
    if not bases:
        return []
    number = at + forgotten
    threshold = (
        rule.level / (number * (number + 1)) / len(bases) / sum(series.paid + series.guard for series in after.sums)
    )
    raised = []
    for base in bases:
        before = found[base]
        falls = [(p, series) for p, series in _guard_falls(before, after, rule) if p < threshold]
        rises = [(p, series) for p, series in _paid_rises(before, after, rule) if p < threshold] if falls else []
        for fall, guard in falls:
            # Prefer a component to the whole reward: it is more specific.
            others = [(series.kind == REWARD, p, series) for p, series in rises if series.name != guard.name]
            if others:
                _, rise, rising = min(others)
                p_value = max(rise, fall)
                raised.append((p_value, base, Finding(rising, guard, before, after, p_value, threshold)))
    raised.sort(key=lambda each: (each[0], each[1], each[2].falling))
    return [(base, finding) for _, base, finding in raised]


def _guard_falls(before: Window, after: Window, rule: AlarmsSettings) -> Iterator[tuple[float, Series]]:
    """Yield the guards with the p-value of their fall."""
    for series in after.sums:
        if series.guard:
            yield _p_value(before, after, series, -series.direction, rule), series


def _paid_rises(before: Window, after: Window, rule: AlarmsSettings) -> Iterator[tuple[float, Series]]:
    """Yield the paid series with the p-value of their rise."""
    for series in after.sums:
        if series.paid:
            yield _p_value(before, after, series, series.direction, rule), series


def _p_value(before: Window, after: Window, series: Series, sign: int, rule: AlarmsSettings) -> float:
    """Return the p-value that a mean rose (`sign` 1) or fell (-1); 1 if the effect is below the limit."""
    one, two = before.sums.get(series, Moments()), after.sums[series]
    if not one.trajectories or not two.trajectories or sign * effect(one, two) < rule.smallest_effect:
        return 1.0
    return p_rise(one, two) if sign > 0 else p_rise(two, one)


def _persists(finding: Finding, now: Window) -> bool:
    """Return True if both series still show at least half of the change that raised the alarm."""
    return all(_remaining_share(finding, now, series) >= 0.5 for series in (finding.rising, finding.falling))


def _remaining_share(finding: Finding, now: Window, series: Series) -> float:
    """Return the share of a series' change that remains; 1 if the series is unknown now."""
    moments = now.sums.get(series, Moments())
    if not moments.trajectories:
        return 1.0
    before = finding.before.sums[series].mean
    return (moments.mean - before) / (finding.after.sums[series].mean - before)


def merge_sums(parts: Iterable[Sums]) -> dict[Series, Moments]:
    """Add up sums over partitions and windows of the log; leave out series without trajectories."""
    whole: dict[Series, Moments] = {}
    for part in parts:
        for series, moments in part.items():
            whole[series] = whole.get(series, Moments()) + moments
    return {series: moments for series, moments in whole.items() if moments.trajectories}
