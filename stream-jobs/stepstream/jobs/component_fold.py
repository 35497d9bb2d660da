"""The part of `measure` that follows reward components: sums by cohort and period, exact under revisions.

State of a partition: of each group its sums in a period, of each cohort and period the sums over its groups. They are
integers of any size (squares of millionths leave 64 bits), so they are kept as JSON of the standard library.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

from stepstream.jobs.alarms import Series
from stepstream.jobs.component_sums import Place, place_of, told, values_of
from stepstream.jobs.moments import Moments
from stepstream.jobs.outputs import Outputs
from stepstream.jobs.record import Record
from stepstream.jobs.state import Changes
from stepstream.topics.events import ComponentStats, LabeledTrajectory, new_component_stats
from stepstream.topics.ids import derived_id

TOPIC = "component-stats"
_GROUP, _PERIOD = b"g", b"p"

Counted = list[Any]
"""What a trajectory was counted as: its place, its group, and its value of each series."""


class ComponentFold:
    """Keeps the sums of one partition. Use it within the fold of `measure`."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._snapshots: dict[str, ComponentStats] = {}

    def take(self, labelled: LabeledTrajectory, before: Counted | None, record: Record, changes: Changes) -> Counted:
        """Counts a trajectory in place of what it was counted as `before`; returns what it is counted as now."""
        place, values = place_of(labelled), values_of(labelled)
        group = labelled["group_id"] or labelled["trajectory_id"]
        if before is not None:
            earlier = {Series(*series): -value for series, value in before[2]}
            self._count(Place(*before[0]), before[1], earlier, -1, record, labelled, changes)
        self._count(place, group, values, 1, record, labelled, changes)
        return [list(place), group, [[list(series), value] for series, value in values.items()]]

    def settle(self, out: Outputs) -> None:
        """Publishes one snapshot of each cohort and period touched."""
        for snapshot in self._snapshots.values():
            out.emit(TOPIC, snapshot["key"], snapshot)
        self._snapshots.clear()

    def _count(
        self,
        place: Place,
        group: str,
        values: Mapping[Series, int],
        by: int,
        record: Record,
        labelled: LabeledTrajectory,
        changes: Changes,
    ) -> None:
        """Adds a trajectory's values (`by` 1), or takes them, already negated, away (-1)."""
        identity = json.dumps([*place, record.partition])
        period_key, group_key = _PERIOD + _digest(identity), _GROUP + _digest(json.dumps([identity, group]))
        members, sums = _read(changes, group_key), _read(changes, period_key)
        for series, value in values.items():
            count, total, squares = members.get(series, [0, 0, 0])
            now = [count + by, total + value, squares + by * value * value]
            members[series] = now
            difference = Moments.of_group(*now) + -Moments.of_group(count, total, squares)
            sums[series] = list(astuple(Moments(*sums.get(series, ())) + difference))
        _write(changes, group_key, {series: now for series, now in members.items() if now[0]})
        _write(changes, period_key, sums)
        version = record.offset + 1
        self._snapshots[identity] = new_component_stats(
            event_id=derived_id(self._job, TOPIC, identity, version),
            occurred_at_us=labelled["occurred_at_us"],
            key=identity,
            partition=record.partition,
            version=version,
            **place._asdict(),
            components=told({series: Moments(*each) for series, each in sums.items()}),
        )


def _read(changes: Changes, key: bytes) -> dict[Series, list[Any]]:
    packed = changes.get(key)
    return {} if packed is None else {Series(*series): sums for series, sums in json.loads(packed)}


def _write(changes: Changes, key: bytes, sums: Mapping[Series, list[Any]]) -> None:
    if sums:
        changes.put(key, json.dumps(sorted(sums.items())).encode())
    else:
        changes.delete(key)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
