"""Sum up reward components by cohort and period, exactly under revisions: a part of the fold of `measure`.

State of a partition: the sums of each group in a period, and of each cohort and period the change of the sums over its
groups in the newest window of the log (`log_window.py`). They are integers of any size (squares of millionths exceed 64
bits), saved as JSON by the standard library. During a batch they stay in memory.
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
from stepstream.jobs.statistics.component_sums import CohortKey, cohort_key_of, to_records, values_of
from stepstream.jobs.statistics.log_window import LogWindow, partition_identity, saved_fields
from stepstream.jobs.statistics.moments import Moments
from stepstream.topics.catalogue import COMPONENT_STATS
from stepstream.topics.events import LabeledTrajectory, new_component_stats
from stepstream.topics.ids import derived_id

_GROUP = b"g"

Counted = list[Any]
"""Saved contribution of a trajectory: its cohort, its group, and its value of each series."""
Sums = dict[Series, list[int]]
"""Of a period the fields of `Moments`; of a group [trajectories, total, squares]. Values in millionths."""


@dataclass(slots=True)
class _Period:
    """Period that a batch changed, with the last record that changed it."""

    name: str
    """Cohort, period and partition, the same in all windows."""
    identity: str
    cohort: CohortKey
    sums: Sums
    record: Record
    occurred_at_us: int


class ComponentFold:
    """Sums of one partition. Use it within the fold of `measure`."""

    def __init__(self, job: str) -> None:
        """Create it; `job` is name and version, as `measure@1`."""
        self._job = job
        self._periods: dict[bytes, _Period] = {}
        self._groups: dict[bytes, Sums] = {}

    def replace(
        self,
        label: LabeledTrajectory,
        before: Counted | None,
        record: Record,
        window: LogWindow,
        changes: Changes,
        out: Outputs,
    ) -> Counted:
        """Add a trajectory, remove its earlier contribution `before`, and return the new contribution."""

        def period_of(cohort: CohortKey) -> _Period:
            return self._period(cohort, record, label["occurred_at_us"], window, changes, out)

        cohort, values = cohort_key_of(label), values_of(label)
        group = _digest(f"{label['tenant']}\0{label['group_id'] or label['trajectory_id']}").hex()
        if before is not None:
            earlier = {Series(*series): value for series, value in before[2]}
            self._count(period_of(CohortKey(*before[0])), before[1], earlier, -1, changes)
        self._count(period_of(cohort), group, values, 1, changes)
        return [list(saved_fields(cohort)), group, [[list(series), value] for series, value in values.items()]]

    def end_batch(self, changes: Changes, out: Outputs) -> list[bytes]:
        """Save the changes of a batch, and publish one snapshot of each cohort and period that changed.

        Returns:
            The keys of the groups that changed.
        """
        changed = list(self._groups)
        for key, members in self._groups.items():
            _write(changes, key, {series: sums for series, sums in members.items() if sums[0]})
        for key, period in self._periods.items():
            _write(changes, key, period.sums)
            version = period.record.offset + 1
            snapshot = new_component_stats(
                event_id=derived_id(self._job, COMPONENT_STATS, period.identity, version, tenant=period.cohort.tenant),
                occurred_at_us=period.occurred_at_us,
                key=period.identity,
                partition=period.record.partition,
                version=version,
                **period.cohort._asdict(),
                components=to_records({series: Moments(*sums) for series, sums in period.sums.items()}),
            )
            out.emit(COMPONENT_STATS, period.identity, snapshot)
        self._groups.clear()
        self._periods.clear()
        return changed

    def _period(
        self, cohort: CohortKey, record: Record, at_us: int, window: LogWindow, changes: Changes, out: Outputs
    ) -> _Period:
        identity = json.dumps(window.identity(cohort, record.partition))
        key = window.key("period", _digest(identity))
        period = self._periods.get(key)
        if period is None:
            if changes.get(key) is None:
                window.count("period", changes, out)
            name = json.dumps(partition_identity(cohort, record.partition))
            period = self._periods[key] = _Period(name, identity, cohort, _read(changes, key), record, at_us)
        period.record, period.occurred_at_us = record, at_us
        return period

    def _count(self, period: _Period, group: str, values: Mapping[Series, int], by: int, changes: Changes) -> None:
        """Add a trajectory's values to its group and period (`by` 1), or remove them (-1)."""
        key = _GROUP + _digest(f"{period.name}/{group}")
        members = self._groups.get(key)
        if members is None:
            members = self._groups[key] = _read(changes, key)
        for series, value in values.items():
            count, total, squares = members.get(series, (0, 0, 0))
            now, sum_now = count + by, total + by * value
            members[series] = [now, sum_now, squares + by * value * value]
            # Change of the group's contribution to each field of `Moments`.
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
