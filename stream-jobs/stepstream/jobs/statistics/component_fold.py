"""The part of `measure` that follows reward components: sums by cohort and period, exact under revisions.

State of a partition: of each group its sums in a period, of each cohort and period the sums over its groups. They are
integers of any size (squares of millionths leave 64 bits), so they are kept as JSON of the standard library; within a
batch they are kept as they are, and written when it settles.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.state import Changes
from stepstream.jobs.statistics.alarms import Series
from stepstream.jobs.statistics.component_sums import CohortKey, place_of, told, values_of
from stepstream.jobs.statistics.moments import Moments
from stepstream.topics.events import LabeledTrajectory, new_component_stats
from stepstream.topics.ids import derived_id

TOPIC = "component-stats"
_GROUP, _PERIOD = b"g", b"p"

Counted = list[Any]
"""What a trajectory was counted as: its place, its group, and its value of each series."""
Sums = dict[Series, list[int]]
"""Of a period the fields of `Moments`, of a group [trajectories, total, squares]; values in millionths."""


@dataclass(slots=True)
class _Period:
    """A period that a batch touched, as of the last record that did."""

    identity: str
    place: CohortKey
    sums: Sums
    record: Record
    occurred_at_us: int


class ComponentFold:
    """Keeps the sums of one partition. Use it within the fold of `measure`."""

    def __init__(self, job: str) -> None:
        """`job` is its name and version, as `measure@1`."""
        self._job = job
        self._periods: dict[bytes, _Period] = {}
        self._groups: dict[bytes, Sums] = {}

    def take(self, labelled: LabeledTrajectory, before: Counted | None, record: Record, changes: Changes) -> Counted:
        """Counts a trajectory in place of what it was counted as `before`; returns what it is counted as now."""
        place, values = place_of(labelled), values_of(labelled)
        group = _digest(f"{labelled['tenant']}\0{labelled['group_id'] or labelled['trajectory_id']}").hex()
        at_us = labelled["occurred_at_us"]
        if before is not None:
            earlier = {Series(*series): value for series, value in before[2]}
            self._count(self._period(CohortKey(*before[0]), record, at_us, changes), before[1], earlier, -1, changes)
        self._count(self._period(place, record, at_us, changes), group, values, 1, changes)
        return [list(place), group, [[list(series), value] for series, value in values.items()]]

    def end_batch(self, changes: Changes, out: Outputs) -> None:
        """Writes what a batch changed, and publishes one snapshot of each cohort and period touched."""
        for key, members in self._groups.items():
            _write(changes, key, {series: sums for series, sums in members.items() if sums[0]})
        for key, period in self._periods.items():
            _write(changes, key, period.sums)
            version = period.record.offset + 1
            snapshot = new_component_stats(
                event_id=derived_id(self._job, TOPIC, period.identity, version),
                occurred_at_us=period.occurred_at_us,
                key=period.identity,
                partition=period.record.partition,
                version=version,
                **period.place._asdict(),
                components=told({series: Moments(*sums) for series, sums in period.sums.items()}),
            )
            out.emit(TOPIC, period.identity, snapshot)
        self._groups.clear()
        self._periods.clear()

    def _period(self, place: CohortKey, record: Record, at_us: int, changes: Changes) -> _Period:
        identity = json.dumps([*place, record.partition])
        key = _PERIOD + _digest(identity)
        period = self._periods.get(key)
        if period is None:
            period = self._periods[key] = _Period(identity, place, _read(changes, key), record, at_us)
        period.record, period.occurred_at_us = record, at_us
        return period

    def _count(self, period: _Period, group: str, values: Mapping[Series, int], by: int, changes: Changes) -> None:
        """Adds a trajectory's values to its group and period (`by` 1), or takes them away (-1)."""
        key = _GROUP + _digest(f"{period.identity}/{group}")
        members = self._groups.get(key)
        if members is None:
            members = self._groups[key] = _read(changes, key)
        for series, value in values.items():
            count, total, squares = members.get(series, (0, 0, 0))
            now, sum_now = count + by, total + by * value
            members[series] = [now, sum_now, squares + by * value * value]
            # What the group adds to the fields of `Moments`, now less than before.
            change = (
                by,
                (now > 0) - (count > 0),
                by * value,
                by * value * value,
                sum_now**2 - total**2,
                now * sum_now - count * total,
                now**2 - count**2,
            )
            period.sums[series] = [a + b for a, b in zip(period.sums.get(series, _NONE), change, strict=True)]


_NONE = (0,) * 7


def _read(changes: Changes, key: bytes) -> Sums:
    packed = changes.get(key)
    return {} if packed is None else {Series(*series): sums for series, sums in json.loads(packed)}


def _write(changes: Changes, key: bytes, sums: Sums) -> None:
    if sums:
        changes.put(key, json.dumps(sorted(sums.items())).encode())
    else:
        changes.delete(key)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
