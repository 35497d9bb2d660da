"""Decide which alarms to raise and to clear: the state of the `watch` job. Pure: callers pass the time.

The alarms that the statistics justify (`alarms.active_alarms`) are compared with those that are active on the log.
Missing ones are raised, surplus ones are cleared.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import NamedTuple

from stepstream.config import AlarmsSettings
from stepstream.jobs.statistics.alarms import (
    GUARDS,
    Finding,
    Period,
    Series,
    Sums,
    Window,
    active_alarms,
    groups_in,
    merge_sums,
    needed_since,
)
from stepstream.jobs.statistics.component_sums import from_records
from stepstream.topics.events import Alarm, ComponentStats, new_alarm
from stepstream.topics.ids import DEFAULT_TENANT, derived_id

RAISED, CLEARED = "raised", "cleared"


class Family(NamedTuple):
    """Trajectories that are comparable under any reward specification: those of one tenant alone."""

    tenant: str
    environment: str
    agent: str
    model: str
    split: str


class Cohort(NamedTuple):
    """A family under one reward specification."""

    family: Family
    reward_spec: str


class Watcher:
    """Statistics and alarms of all cohorts. Not thread-safe."""

    def __init__(self, rule: AlarmsSettings, job: str) -> None:
        """Create it; `job` is name and version, as `watch@1`."""
        self._rule, self._job = rule, job
        self._parts: defaultdict[Cohort, dict[Period, dict[str, tuple[int, Sums]]]] = defaultdict(dict)
        """Version and sums by cohort, period and key of the record."""
        self._labelled_us: dict[Cohort, int] = {}
        """Time of the newest label."""
        self._periods: defaultdict[Cohort, dict[Period, Sums]] = defaultdict(dict)
        """Sums over keys."""
        self._forgotten: dict[Cohort, tuple[int, Period]] = {}
        """Number of windows whose periods were removed, and the first period after them, by cohort."""
        self._specs: defaultdict[Family, set[str]] = defaultdict(set)
        self._touched: set[Family] = set()
        self._alarms: dict[str, Alarm] = {}
        self._taken_back: dict[str, frozenset[int]] = {}
        """Versions by model that were taken back."""

    @property
    def active(self) -> list[Alarm]:
        """Alarms that are active."""
        return [alarm for alarm in self._alarms.values() if alarm["state"] == RAISED]

    @property
    def periods(self) -> int:
        """Number of periods in memory."""
        return sum(map(len, self._periods.values()))

    def add_decision(self, alarm: Alarm) -> None:
        """Record an earlier decision; alarms of other programs are ignored."""
        if alarm["kind"] in GUARDS:
            self._alarms[alarm["alarm_id"]] = alarm

    def set_taken_back(self, model: str, versions: Collection[int]) -> None:
        """Record the versions of a model that were taken back: their statistics are complete."""
        if frozenset(versions) != self._taken_back.get(model, frozenset()):
            self._taken_back[model] = frozenset(versions)
            self._touched |= {family for family in self._specs if family.model == model}

    def add_stats(self, stats: ComponentStats) -> None:
        """Add a snapshot of statistics, unless a newer one is known or no comparison needs its period any more."""
        family = _family_of(stats)
        cohort = Cohort(family, stats["reward_spec"])
        version = stats["policy_version"]
        period = Period(-1 if version is None else version, stats["hour"])
        if period < self._forgotten.get(cohort, (0, period))[1]:
            return
        self._labelled_us[cohort] = max(self._labelled_us.get(cohort, 0), stats["occurred_at_us"])
        parts = self._parts[cohort].setdefault(period, {})
        known, _ = parts.get(stats["key"], (-1, {}))
        if stats["version"] > known:
            parts[stats["key"]] = stats["version"], from_records(stats["components"])
            self._periods[cohort][period] = merge_sums(sums for _, sums in parts.values())
            self._specs[family].add(cohort.reward_spec)
            self._touched.add(family)

    def decide(self, now_us: int) -> Iterator[Alarm]:
        """Yield the decisions that are due. Call it when the log has been read to its end."""
        for family in sorted(self._touched):
            for cohort in sorted(Cohort(family, spec) for spec in self._specs[family]):
                for alarm in self._changes(cohort, now_us):
                    self.add_decision(alarm)
                    yield alarm
                self._forget(cohort)
        self._touched.clear()

    def _forget(self, cohort: Cohort) -> None:
        """Remove the periods that no comparison needs any more."""
        bad = self._taken_back.get(cohort.family.model, frozenset())
        surplus, first = needed_since(self._periods[cohort], self._rule, bad)
        if surplus:
            self._forgotten[cohort] = self._forgotten.get(cohort, (0, first))[0] + surplus, first
            for periods in (self._periods[cohort], self._parts[cohort]):
                for period in [period for period in periods if period < first]:
                    del periods[period]

    def _changes(self, cohort: Cohort, now_us: int) -> Iterator[Alarm]:
        wanted = {finding.falling[:2]: finding for finding in self._wanted(cohort)}
        raised = {(alarm["kind"], alarm["falling"]): alarm for alarm in self.active if _cohort_of(alarm) == cohort}
        for falling in sorted(raised.keys() - wanted.keys()):
            yield self._next(raised[falling] | {"state": CLEARED}, now_us)
        for falling in sorted(wanted.keys() - raised.keys()):
            yield self._next(self._raise(cohort, wanted[falling]), now_us)

    def _wanted(self, cohort: Cohort) -> list[Finding]:
        """Return the findings that justify alarms; none once the cohort has another reward specification."""
        if self._is_replaced(cohort):
            return []
        bad = self._taken_back.get(cohort.family.model, frozenset())
        return active_alarms(self._periods[cohort], self._rule, self._forgotten.get(cohort, (0,))[0], bad)

    def _is_replaced(self, cohort: Cohort) -> bool:
        """Return True if the newest labels are of another specification, which has had a window's groups.

        The time of labels decides, not their version: after a rollback, a new specification judges an older version.
        """
        others = (Cohort(cohort.family, spec) for spec in self._specs[cohort.family] - {cohort.reward_spec})
        return any(
            self._labelled_us[other] > self._labelled_us[cohort]
            and groups_in(merge_sums(self._periods[other].values())) >= self._rule.window
            for other in others
        )

    def _raise(self, cohort: Cohort, finding: Finding) -> Alarm:
        rising, falling, before, after = finding.rising, finding.falling, finding.before, finding.after
        tenant, environment, agent, model, split = cohort.family
        where = (environment, agent, model, split, cohort.reward_spec, falling.kind, falling.name, *after.last)
        means = [window.sums[series].mean for series in (rising, falling) for window in (before, after)]
        return new_alarm(
            event_id="",
            occurred_at_us=0,
            alarm_id=derived_id(self._job, "alarm", *where, tenant=tenant),
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
        """Return the decision as an event, derived from the previous decision about the alarm."""
        earlier = self._alarms.get(alarm["alarm_id"])
        origin = "" if earlier is None else earlier["event_id"]
        event_id = derived_id(self._job, alarm["alarm_id"], alarm["state"], origin, tenant=alarm["tenant"])
        return {**alarm, "event_id": event_id, "occurred_at_us": now_us}


def _cohort_of(alarm: Alarm) -> Cohort:
    return Cohort(_family_of(alarm), alarm["reward_spec"])


def _family_of(record: Alarm | ComponentStats) -> Family:
    return Family(record["tenant"], record["environment"], record["agent"], record["model"], record["split"])


def _version(period: Period) -> int | None:
    return None if period.version < 0 else period.version


def _message(cohort: Cohort, finding: Finding, means: list[float]) -> str:
    def name_of(series: Series) -> str:
        return series.name if series.kind == series.name else f"{series.kind} '{series.name}'"

    def when(window: Window) -> str:
        if window.last.version < 0:
            return f"{window.last.hour - window.first.hour + 1} h"
        return f"v{window.first.version} to v{window.last.version}"

    family = cohort.family
    name = family.agent + (f" in {family.environment}" if family.environment else "")
    name += f" of tenant {family.tenant}" if family.tenant != DEFAULT_TENANT else ""
    return (
        f"{name}, {family.model}: {name_of(finding.rising)} went from {means[0]:.3g} to {means[1]:.3g} while "
        f"{name_of(finding.falling)} went from {means[2]:.3g} to {means[3]:.3g} ({when(finding.before)}, then "
        f"{when(finding.after)}): the reward may be gamed"
    )
