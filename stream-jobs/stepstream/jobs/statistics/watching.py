"""What `watch` knows of every cohort, and what it decides: pure, but for the time that it is told.

What stands by the statistics (`alarms.standing`) is compared with what stands by the log: what is missing there is
raised, what is too much is cleared.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from stepstream.config import AlarmsSettings
from stepstream.jobs.statistics.alarms import Finding, Period, Series, Sums, Window, merge, standing, windows
from stepstream.jobs.statistics.component_sums import heard
from stepstream.topics.events import Alarm, ComponentStats, new_alarm
from stepstream.topics.ids import derived_id

RAISED, CLEARED = "raised", "cleared"


class Family(NamedTuple):
    """Whose trajectories are compared, whatever they were paid by."""

    environment: str
    agent: str
    model: str
    split: str


class Cohort(NamedTuple):
    """A family under one reward specification."""

    family: Family
    reward_spec: str


class Watcher:
    """All cohorts. Not thread-safe."""

    def __init__(self, rule: AlarmsSettings, job: str) -> None:
        """`job` is its name and version, as `watch@1`."""
        self._rule, self._job = rule, job
        self._parts: defaultdict[Cohort, dict[Period, dict[int, tuple[int, Sums]]]] = defaultdict(dict)
        """Version and sums by cohort, period and partition."""
        self._periods: defaultdict[Cohort, dict[Period, Sums]] = defaultdict(dict)
        """The sums of the partitions together."""
        self._specs: defaultdict[Family, set[str]] = defaultdict(set)
        self._touched: set[Family] = set()
        self._alarms: dict[str, Alarm] = {}

    @property
    def standing(self) -> list[Alarm]:
        """The alarms that stand."""
        return [alarm for alarm in self._alarms.values() if alarm["state"] == RAISED]

    def decided(self, alarm: Alarm) -> None:
        """Learns of an earlier decision."""
        self._alarms[alarm["alarm_id"]] = alarm

    def learn(self, stats: ComponentStats) -> None:
        """Takes a snapshot of statistics; an older one than is known already changes nothing."""
        family = Family(stats["environment"], stats["agent"], stats["model"], stats["split"])
        cohort = Cohort(family, stats["reward_spec"])
        version = stats["policy_version"]
        period = Period(-1 if version is None else version, stats["hour"])
        parts = self._parts[cohort].setdefault(period, {})
        known, _ = parts.get(stats["partition"], (-1, {}))
        if stats["version"] > known:
            parts[stats["partition"]] = stats["version"], heard(stats["components"])
            self._periods[cohort][period] = merge(sums for _, sums in parts.values())
            self._specs[family].add(cohort.reward_spec)
            self._touched.add(family)

    def decide(self, now_us: int) -> Iterator[Alarm]:
        """What has to be told now; call it when all that is known of the log has been learned."""
        for family in sorted(self._touched):
            for cohort in sorted(Cohort(family, spec) for spec in self._specs[family]):
                for alarm in self._changes(cohort, now_us):
                    self.decided(alarm)
                    yield alarm
        self._touched.clear()

    def _changes(self, cohort: Cohort, now_us: int) -> Iterator[Alarm]:
        wanted = {finding.falling[:2]: finding for finding in self._wanted(cohort)}
        told = {(alarm["kind"], alarm["falling"]): alarm for alarm in self.standing if _cohort_of(alarm) == cohort}
        for falling in sorted(told.keys() - wanted.keys()):
            yield self._next(told[falling] | {"state": CLEARED}, now_us)
        for falling in sorted(wanted.keys() - told.keys()):
            yield self._next(self._raise(cohort, wanted[falling]), now_us)

    def _wanted(self, cohort: Cohort) -> list[Finding]:
        """What stands by the statistics; nothing, once another specification has taken the cohort's place."""
        periods = self._periods[cohort]
        for spec in self._specs[cohort.family] - {cohort.reward_spec}:
            others = self._periods[Cohort(cohort.family, spec)]
            if max(others) > max(periods) and windows(others, self._rule.window):
                return []
        return standing(periods, self._rule)

    def _raise(self, cohort: Cohort, finding: Finding) -> Alarm:
        rising, falling, before, after = finding.rising, finding.falling, finding.before, finding.after
        where = (*cohort.family, cohort.reward_spec, falling.kind, falling.name, *after.last)
        means = [window.sums[series].mean for series in (rising, falling) for window in (before, after)]
        return new_alarm(
            event_id="",
            occurred_at_us=0,
            alarm_id=derived_id(self._job, "alarm", *where),
            state=RAISED,
            kind=falling.kind,
            **cohort.family._asdict(),
            reward_spec=cohort.reward_spec,
            rising=rising.name,
            falling=falling.name,
            rising_before=means[0],
            rising_after=means[1],
            falling_before=means[2],
            falling_after=means[3],
            trajectories_before=before.sums[falling].trajectories,
            trajectories_after=after.sums[falling].trajectories,
            p_value=finding.p_value,
            threshold=finding.threshold,
            baseline_version=_version(before.last),
            since_version=_version(after.first),
            until_version=_version(after.last),
            message=_message(cohort, finding, means),
        )

    def _next(self, alarm: Alarm, now_us: int) -> Alarm:
        """The decision as an event: derived from the alarm's decision before it."""
        earlier = self._alarms.get(alarm["alarm_id"])
        origin = "" if earlier is None else earlier["event_id"]
        event_id = derived_id(self._job, alarm["alarm_id"], alarm["state"], origin)
        return {**alarm, "event_id": event_id, "occurred_at_us": now_us}


def _cohort_of(alarm: Alarm) -> Cohort:
    return Cohort(Family(alarm["environment"], alarm["agent"], alarm["model"], alarm["split"]), alarm["reward_spec"])


def _version(period: Period) -> int | None:
    return None if period.version < 0 else period.version


def _message(cohort: Cohort, finding: Finding, means: list[float]) -> str:
    def told(series: Series) -> str:
        return series.name if series.kind == series.name else f"{series.kind} '{series.name}'"

    def when(window: Window) -> str:
        if window.last.version < 0:
            return f"{window.last.hour - window.first.hour + 1} h"
        return f"v{window.first.version} to v{window.last.version}"

    name = cohort.family.agent + (f" in {cohort.family.environment}" if cohort.family.environment else "")
    return (
        f"{name}, {cohort.family.model}: {told(finding.rising)} went from {means[0]:.3g} to {means[1]:.3g} while "
        f"{told(finding.falling)} went from {means[2]:.3g} to {means[3]:.3g} ({when(finding.before)}, then "
        f"{when(finding.after)}): what is rewarded may be gamed"
    )
