"""The fold of the `measure` job."""

import hashlib
from dataclasses import asdict, astuple
from typing import Any, cast

import orjson

from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.state import Changes
from stepstream.jobs.statistics.cohorts import REWARD_UNIT, TIME_UNIT, Cohort, Sums, contributions
from stepstream.jobs.statistics.component_fold import ComponentFold
from stepstream.topics.events import LabeledTrajectory, StatsScope, TrajectoryStats, new_trajectory_stats
from stepstream.topics.ids import derived_id

NAME = "measure"


VERSION = "1"


JOB = f"{NAME}@{VERSION}"


LABELS, STATS = "labeled-trajectories", "trajectory-stats"


LABELS, STATS = "labeled-trajectories", "trajectory-stats"


_TRAJECTORY, _COHORT = b"t", b"c"


_TRAJECTORY, _COHORT = b"t", b"c"


class MeasureFold:
    """One partition of labelled trajectories.

    State: of each trajectory the revision that counts and what it adds to its cohorts; of each cohort its sums.
    """

    def __init__(self) -> None:
        self._snapshots: dict[bytes, TrajectoryStats] = {}
        self._components = ComponentFold(JOB)

    def apply(self, record: Record, event: dict[str, Any], changes: Changes, out: Outputs) -> None:
        """Counts a trajectory, in place of its earlier revision if there was one."""
        labelled = cast(LabeledTrajectory, event)
        key = _TRAJECTORY + _digest(labelled["trajectory_id"])
        packed = changes.get(key)
        before: dict[str, Any] = {"revision": 0, "label": "", "adds": []} if packed is None else orjson.loads(packed)
        revision, label = labelled["revision"], labelled["event_id"]
        if revision < before["revision"] or label == before["label"]:
            out.count(metrics.DUPLICATES.labels(record.topic))
            return
        adds = list(contributions(labelled))
        counted = self._components.take(labelled, before.get("counted"), record, changes)
        now = {"adds": [[astuple(c), astuple(s)] for c, s in adds], "counted": counted}
        changes.put(key, orjson.dumps({"revision": revision, "label": label} | now))
        difference: dict[Cohort, Sums] = {}
        for cohort, sums in before["adds"]:
            difference[Cohort(*cohort)] = -Sums(*sums)
        for cohort, sums in adds:
            difference[cohort] = difference.get(cohort, Sums()) + sums
        for cohort, sums in difference.items():
            self._add(cohort, sums, record, labelled, changes)
        whole, whole_sums = adds[0]
        self._snapshots[key] = _snapshot(
            "trajectory", labelled["trajectory_id"], whole, whole_sums, record, labelled, labelled["trajectory_id"]
        )

    def end_batch(self, changes: Changes, out: Outputs) -> None:
        """Publishes one snapshot of each trajectory, cohort and period touched."""
        for snapshot in self._snapshots.values():
            out.emit(STATS, snapshot["key"], snapshot)
        self._snapshots.clear()
        self._components.end_batch(changes, out)

    def due(self, now_ms: int) -> bool:
        """Never: nothing here depends on time."""
        return False

    def tick(self, now_ms: int, changes: Changes, out: Outputs) -> None:
        """Nothing."""

    def restore_published(self, event: dict[str, Any], changes: Changes) -> None:
        """Nothing: snapshots are absolute."""

    def _add(self, cohort: Cohort, sums: Sums, record: Record, labelled: LabeledTrajectory, changes: Changes) -> None:
        identity = orjson.dumps([*astuple(cohort), record.partition]).decode()
        key = _COHORT + _digest(identity)
        packed = changes.get(key)
        total = sums if packed is None else Sums(*orjson.loads(packed)) + sums
        changes.put(key, orjson.dumps(astuple(total)))
        self._snapshots[key] = _snapshot("cohort", identity, cohort, total, record, labelled, None)


def _snapshot(
    scope: StatsScope,
    key: str,
    cohort: Cohort,
    sums: Sums,
    record: Record,
    labelled: LabeledTrajectory,
    trajectory_id: str | None,
) -> TrajectoryStats:
    counts = asdict(sums)
    reward, duration = counts.pop("reward"), counts.pop("duration")
    version = record.offset + 1
    return new_trajectory_stats(
        event_id=derived_id(JOB, scope, key, record.partition, version),
        occurred_at_us=labelled["occurred_at_us"],
        scope=scope,
        key=key,
        partition=record.partition,
        version=version,
        trajectory_id=trajectory_id,
        **asdict(cohort),
        **counts,
        reward_sum=reward / REWARD_UNIT,
        duration_ms_sum=duration / TIME_UNIT,
    )


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
