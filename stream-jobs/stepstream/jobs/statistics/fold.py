"""Fold labelled trajectories into statistics of each trajectory and cohort: the fold of the `measure` job."""

import hashlib
from typing import Any, cast

import orjson

from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.expiry import Expiry
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.state import Changes, PartitionState
from stepstream.jobs.statistics.cohorts import REWARD_UNIT, TIME_UNIT, Cohort, Sums, contributions
from stepstream.jobs.statistics.component_fold import ComponentFold
from stepstream.jobs.statistics.log_window import LogWindow, saved_fields, window_of
from stepstream.topics.catalogue import TRAJECTORY_STATS
from stepstream.topics.events import LabeledTrajectory, StatsScope, TrajectoryStats, new_trajectory_stats
from stepstream.topics.ids import DEFAULT_TENANT, derived_id, trajectory_name
from stepstream.topics.label_precedence import label_precedence

NAME = "measure"
VERSION = "1"
JOB = f"{NAME}@{VERSION}"

_TRAJECTORY = b"t"


class MeasureFold:
    """Fold of one partition.

    State: for each trajectory its revision and its contribution to each cohort; for each cohort its sums in the newest
    window of the log. Trajectories and groups expire, since no revision comes after `label` has forgotten a trajectory;
    sums are deleted with their window (`log_window.py`).
    """

    def __init__(self, state: PartitionState, *, keep_days: int, max_trajectories: int) -> None:
        """Create the fold.

        Args:
            state: of the partition.
            keep_days: time to keep a trajectory after its newest revision; longer than `label` keeps a closed one.
            max_trajectories: largest number of trajectories that are kept.
        """
        self._expiry = Expiry(state, keep_days, 2 * max_trajectories)  # each may have a group of its own
        self._snapshots: dict[bytes, TrajectoryStats] = {}
        self._components = ComponentFold(JOB)
        self._changed_ms = 0

    def apply(self, record: Record, event: dict[str, Any], changes: Changes, out: Outputs) -> None:
        """Add a trajectory; it replaces its earlier revision."""
        label = cast(LabeledTrajectory, event)
        key = _TRAJECTORY + trajectory_name(label["tenant"], label["trajectory_id"])
        before = _before(key, label, changes)
        revision, label_id = label["revision"], label["event_id"]
        if label_precedence(revision, label_id) <= label_precedence(before["revision"], before["label"]):
            out.count(metrics.DUPLICATES.labels(record.topic))
            return
        adds = list(contributions(label))
        window = window_of(record, changes, out)
        counted = self._components.replace(label, before.get("counted"), record, window, changes, out)
        now = {"adds": [[saved_fields(tuple(c)), tuple(s)] for c, s in adds], "counted": counted}
        changes.put(key, orjson.dumps({"revision": revision, "label": label_id} | now))
        self._expiry.touch([key], record.timestamp_ms, changes, out, "trajectory")
        self._changed_ms = record.timestamp_ms
        difference: dict[Cohort, Sums] = {}
        for cohort, sums in before["adds"]:
            difference[Cohort(*cohort)] = Sums(*sums).negated()
        for cohort, sums in adds:
            difference[cohort] = difference.get(cohort, Sums()).plus(sums)
        for cohort, sums in difference.items():
            self._add(cohort, sums, record, label, window, changes, out)
        self._snapshots[key] = _snapshot("trajectory", _key_of(label), *adds[0], record, label)

    def end_batch(self, changes: Changes, out: Outputs) -> None:
        """Publish one snapshot of each trajectory, cohort and period that the batch changed."""
        for snapshot in self._snapshots.values():
            out.emit(TRAJECTORY_STATS, snapshot["key"], snapshot)
        self._snapshots.clear()
        groups = self._components.end_batch(changes, out)
        self._expiry.touch(groups, self._changed_ms, changes, out, "group")

    def due(self, now_ms: int) -> bool:
        """Return True if trajectories may have expired."""
        return self._expiry.due(now_ms)

    def tick(self, now_ms: int, changes: Changes, out: Outputs) -> None:
        """Delete expired trajectories and groups."""
        self._expiry.delete_expired(now_ms, changes, out)

    def restore_published(self, event: dict[str, Any], changes: Changes) -> None:
        """Do nothing: snapshots hold totals."""

    def _add(
        self,
        cohort: Cohort,
        sums: Sums,
        record: Record,
        label: LabeledTrajectory,
        window: LogWindow,
        changes: Changes,
        out: Outputs,
    ) -> None:
        identity = orjson.dumps(window.identity(cohort, record.partition)).decode()
        key = window.key("cohort", _digest(identity))
        packed = changes.get(key)
        if packed is None:
            window.count("cohort", changes, out)
        total = sums if packed is None else Sums(*orjson.loads(packed)).plus(sums)
        changes.put(key, orjson.dumps(tuple(total)))
        self._snapshots[key] = _snapshot("cohort", identity, cohort, total, record, label)


def _before(key: bytes, label: LabeledTrajectory, changes: Changes) -> dict[str, Any]:
    """Return the saved state of a trajectory.

    Earlier releases saved it by the id alone, which belonged to one tenant. A trajectory without a state of its own
    takes that one over if it has a lower revision: then it is the same trajectory, since the first revision of every
    trajectory is 1 and has come.
    """
    by_id = _TRAJECTORY + _digest(label["trajectory_id"])
    for saved in (key, by_id):
        packed = changes.get(saved)
        if packed is None:
            continue
        state: dict[str, Any] = orjson.loads(packed)
        if saved == key or state["revision"] < label["revision"]:
            if saved == by_id:
                changes.delete(by_id)
            return state
    return {"revision": 0, "label": "", "adds": []}


def _key_of(label: LabeledTrajectory) -> str:
    """Return the key of a trajectory's statistics: its id, which is the key of earlier releases; else a JSON array.

    The keys of cohorts are JSON arrays too, with more elements.
    """
    tenant, trajectory_id = label["tenant"], label["trajectory_id"]
    if tenant == DEFAULT_TENANT and not trajectory_id.startswith("["):
        return trajectory_id
    return orjson.dumps([tenant, trajectory_id]).decode()


def _snapshot(
    scope: StatsScope,
    key: str,
    cohort: Cohort,
    sums: Sums,
    record: Record,
    label: LabeledTrajectory,
) -> TrajectoryStats:
    is_cohort = scope == "cohort"
    counts = sums._asdict()
    reward, duration = counts.pop("reward"), counts.pop("duration")
    version = record.offset + 1
    return new_trajectory_stats(
        event_id=derived_id(JOB, scope, key, record.partition, version),
        occurred_at_us=label["occurred_at_us"],
        scope=scope,
        key=key,
        partition=record.partition,
        version=version,
        trajectory_id=None if is_cohort else label["trajectory_id"],
        **cohort._asdict(),
        **counts,
        reward_sum=reward / REWARD_UNIT,
        duration_ms_sum=duration / TIME_UNIT,
    )


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
