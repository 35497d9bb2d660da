"""Fold the events of one partition into trajectories, verify the closed ones, and publish the verdicts.

State, by a short name of the trajectory: its `TrajectoryState` (`labels/trajectory_state.py`), its encrypted steps as
they came, a digest of the events that it was judged by, and the day on which it expires.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import orjson

from stepstream.config import LabelSettings
from stepstream.crypto.sealing import is_erased
from stepstream.jobs.governance.consent import strictest_of
from stepstream.jobs.governance.trajectory_policy import TrajectoryPolicies
from stepstream.jobs.labels.feedback_signal import source_of
from stepstream.jobs.labels.find_trajectory import claim_id, find_trajectory, hand_over, release_id
from stepstream.jobs.labels.trajectory_state import TrajectoryState
from stepstream.jobs.labels.trajectory_store import TrajectoryStore, name_of
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import InvalidRecord, Record
from stepstream.jobs.runtime.retry import Decoder
from stepstream.jobs.runtime.state import Changes, PartitionState
from stepstream.jobs.runtime.stored_count import StoredCount
from stepstream.jobs.verifiers.base import Case, Verdict
from stepstream.jobs.verifiers.cases import cases_of
from stepstream.jobs.verifiers.pool import CaseResult
from stepstream.jobs.verifiers.specification import Verification
from stepstream.topics.catalogue import CLOSURES, FEEDBACK, GOVERNED_STEPS
from stepstream.topics.events import Consent, Feedback, Step, TrajectoryClosed, new_feedback
from stepstream.topics.ids import DEFAULT_TENANT, derived_id
from stepstream.topics.trusted_sources import SHADOW_PREFIX

NAME = "verify"
VERSION = "1"
JOB = f"{NAME}@{VERSION}"

_STEP, _DONE, _EXPIRY, _EXPIRIES = b"s", b"v", b"x", b"k"
_INDEX = struct.Struct(">i")
_DAY = struct.Struct(">I")
_DAY_MS = 24 * 3600 * 1000
_EXPIRED_PER_TICK = 500
"""Trajectories examined in one tick after their retention period."""


class CaseJudge(Protocol):
    """Judges cases; `VerifierPool` implements it."""

    def judge(self, work: Sequence[tuple[Verification, Case]]) -> list[CaseResult]:
        """Return the result of each case."""
        ...


@dataclass(frozen=True, slots=True)
class _Work:
    """Case to judge, and the fields of its feedback beside the verdict."""

    record: Record
    trajectory: TrajectoryState
    first: Step
    consent: Consent
    users: Mapping[int, str]
    """User of each step, by step index in order."""
    verification: Verification
    digest: str
    """Digest of the events by which the trajectory is judged."""
    before: str | None
    """Digest of the previous time; None: never judged."""
    case: Case | None
    """None: the text to read is missing."""


class VerifyFold:
    """Fold of one partition."""

    def __init__(
        self,
        state: PartitionState,
        verifications: Sequence[Verification],
        judges: CaseJudge,
        codec: Decoder,
        policies: TrajectoryPolicies,
        *,
        keep_days: int,
        limits: LabelSettings,
    ) -> None:
        self._state, self._codec, self._policies = state, codec, policies
        self._store = TrajectoryStore()
        self._verifications, self._judges = verifications, judges
        self._keep_days, self._swept_day = keep_days, 0
        self._limits = limits
        self._expiries = StoredCount(state, _EXPIRIES, _EXPIRY)
        self._touched: dict[bytes, tuple[TrajectoryState, Record]] = {}

    def apply(self, record: Record, event: dict[str, Any], changes: Changes, out: Outputs) -> None:
        """Save a step, or record the end of a trajectory; ignore what exceeds the caps of `label`."""
        if record.topic == GOVERNED_STEPS and event["step_index"] >= self._limits.max_steps:
            return

        def saved(key: bytes) -> TrajectoryState | None:
            return self._saved(key, changes)

        name, trajectory = find_trajectory(event["tenant"], event["trajectory_id"], saved, changes)
        if record.topic == GOVERNED_STEPS:
            step = cast(Step, event)
            if not trajectory.indices:
                self._hand_over_unowned(name, trajectory, record, changes, rebuilding=out.replaying)
            self._store.load_step(name, trajectory, step["step_index"], changes)
            noted, _ = trajectory.add_step(step, record.offset, record.timestamp_ms)
            if noted == "taken":
                assert record.value is not None
                changes.put(_step_key(name, step["step_index"]), record.value)
        elif record.topic == CLOSURES:
            trajectory.close(cast(TrajectoryClosed, event))
        else:
            feedback = cast(Feedback, event)
            if feedback["end"] == "open":
                return  # only feedback that ends a trajectory matters here
            source = source_of(feedback)
            self._store.load_feedback(name, trajectory, source, changes)
            if source not in trajectory.feedback and trajectory.feedback_count >= self._limits.max_feedback:
                return
            if not trajectory.add_feedback(feedback, record.timestamp_ms):
                return
        self._touched[name] = trajectory, record

    def end_batch(self, changes: Changes, out: Outputs) -> None:
        """Judge the trajectories that closed, and publish the verdicts."""
        work = []
        for name, (trajectory, record) in self._touched.items():
            if trajectory.is_closed and not trajectory.erased:
                work += self._work(name, trajectory, record, changes, out)
            if trajectory.kept_day < 0:
                self._keep(name, trajectory, record.timestamp_ms // _DAY_MS, changes)
                out.count(metrics.STATE_ADDED.labels("trajectory"))
            self._store.put(name, trajectory, changes)
        self._touched.clear()
        if work and not out.replaying:
            self._judge(work, out)

    def due(self, now_ms: int) -> bool:
        """Return True once a day, when old trajectories expire, and if there are too many."""
        return now_ms // _DAY_MS > self._swept_day or self._expiries.value > self._limits.max_trajectories

    def tick(self, now_ms: int, changes: Changes, out: Outputs) -> None:
        """Delete the trajectories without an event since `keep_days`, closed or not, a part of them in each tick.

        Beyond the cap, delete those with the oldest newest event.
        """
        day = now_ms // _DAY_MS
        expired = 0
        for entry, _ in self._state.scan(_EXPIRY):
            if expired == _EXPIRED_PER_TICK:
                return
            kept_day, is_full = _DAY.unpack_from(entry)[0], self._expiries.value > self._limits.max_trajectories
            if kept_day >= day - self._keep_days and not is_full:
                break
            expired += 1
            name = entry[_DAY.size :]
            trajectory = self._saved(name, changes)
            if trajectory is None:
                self._forget(kept_day, name, changes)
                continue
            newest = trajectory.arrived_ms // _DAY_MS
            if newest >= day - self._keep_days and (newest > kept_day or not is_full):
                self._forget(kept_day, name, changes)
                self._keep(name, trajectory, newest, changes)
                self._store.put(name, trajectory, changes)
                continue
            out.count(metrics.STATE_REMOVED.labels("trajectory", "cap" if newest >= day - self._keep_days else "age"))
            self._delete(name, trajectory, changes)
        self._swept_day = day

    def _keep(self, name: bytes, trajectory: TrajectoryState, day: int, changes: Changes) -> None:
        trajectory.kept_day = day
        changes.put(_EXPIRY + _DAY.pack(day) + name, b"")
        self._expiries.add(1, changes)

    def _forget(self, day: int, name: bytes, changes: Changes) -> None:
        changes.delete(_EXPIRY + _DAY.pack(day) + name)
        self._expiries.add(-1, changes)

    def restore_published(self, event: dict[str, Any], changes: Changes) -> None:
        """Do nothing: the steps tell what was judged."""

    def _work(
        self, name: bytes, trajectory: TrajectoryState, record: Record, changes: Changes, out: Outputs
    ) -> list[_Work]:
        """Return the cases of a closed trajectory that was not judged by the same events."""
        # By source events: governing history again must not judge it again.
        self._store.load_all(name, trajectory, changes)
        sources = sorted((str(index), entry[1]) for index, entry in trajectory.steps.items())
        if trajectory.tenant != DEFAULT_TENANT:
            sources.append(("tenant", trajectory.tenant))  # the digests of the default tenant stay as they were
        digest = hashlib.blake2b(orjson.dumps(sources), digest_size=16).hexdigest()
        packed = changes.get(_DONE + name)
        before = None if packed is None else packed.decode()
        if before == digest:
            return []
        changes.put(_DONE + name, digest.encode())
        stored = [changes.get(_step_key(name, index)) for index in trajectory.indices]
        steps = [cast(Step, self._codec.decode(GOVERNED_STEPS, value)) for value in stored]
        first = steps[0]
        policy = self._policies.of(first["tenant"], first["agent"], trajectory.users, first["occurred_at_us"])
        consent = strictest_of(policy.consent, *(step["consent"] for step in steps))
        withheld = consent == "none" or policy.erased or any(map(is_erased, steps))
        users = {step["step_index"]: step["user"] for step in steps if step["user"]}
        work: list[_Work] = []
        for verification in self._verifications:
            config = verification.config
            if not config.applies(first["agent"], first["environment"], first["task_id"]):
                continue
            found = None if withheld else cases_of(verification, steps)
            if found is None:
                result = "withheld" if withheld else "unknown_task"
                out.count(metrics.VERIFIED.labels(config.name, result))
                continue
            work += [
                _Work(record, trajectory, first, consent, users, verification, digest, before, case) for case in found
            ]
        return work

    def _judge(self, work: Sequence[_Work], out: Outputs) -> None:
        judged = iter(self._judges.judge([(one.verification, one.case) for one in work if one.case is not None]))
        for one in work:
            name = one.verification.config.name
            result = CaseResult("verified", [Verdict(0.0, "missing")]) if one.case is None else next(judged)
            shadow = any(verdict.shadow for verdict in result.verdicts)
            out.count(metrics.VERIFIED.labels(name, "shadow" if shadow else result.outcome))
            if result.outcome == "unusable":
                out.dead_letter(one.record, InvalidRecord("invalid", f"verification '{name}': {result.reason}"))
            for verdict in result.verdicts:
                out.emit(FEEDBACK, one.trajectory.trajectory_id, _feedback(one, verdict))

    def _saved(self, name: bytes, changes: Changes) -> TrajectoryState | None:
        touched = self._touched.get(name)
        return touched[0] if touched is not None else self._store.head(name, changes)

    def _hand_over_unowned(
        self, name: bytes, trajectory: TrajectoryState, record: Record, changes: Changes, *, rebuilding: bool
    ) -> None:
        """Give what was collected under its id, without an owner, to a trajectory whose first step comes."""

        def saved(key: bytes) -> TrajectoryState | None:
            return self._saved(key, changes)

        def of_tenant(tenant: str) -> TrajectoryState:
            found = name, trajectory
            if tenant != trajectory.owner:
                found = find_trajectory(tenant, trajectory.trajectory_id, saved, changes)
            self._store.load_all(*found, changes)
            self._touched[found[0]] = found[1], record
            return found[1]

        unowned = claim_id(name, trajectory, saved, changes, rebuilding=rebuilding)
        if unowned is None or trajectory.owner is None:
            return
        by_id = name_of(trajectory.trajectory_id)
        self._store.load_all(by_id, unowned, changes)
        hand_over(unowned, trajectory.owner, of_tenant)
        self._delete(by_id, unowned, changes)
        self._touched.pop(by_id, None)

    def _delete(self, name: bytes, trajectory: TrajectoryState, changes: Changes) -> None:
        self._store.delete(name, trajectory, changes)
        release_id(trajectory, changes)
        if trajectory.kept_day >= 0:
            self._forget(trajectory.kept_day, name, changes)
        for key in (_DONE + name, *(_step_key(name, index) for index in trajectory.indices)):
            changes.delete(key)


def _feedback(work: _Work, verdict: Verdict) -> Feedback:
    config = work.verification.config
    about_case = None if work.case is None else work.case.step_index
    index = about_case if verdict.step_index is None else verdict.step_index
    return new_feedback(
        event_id=_event_id(work, index, work.digest),
        occurred_at_us=work.trajectory.newest_us,
        producer=f"{NAME}/{VERSION}",
        tenant=work.first["tenant"],
        consent=work.consent,
        user=_person(work, index),
        trajectory_id=work.trajectory.trajectory_id,
        step_index=index,
        name=(SHADOW_PREFIX if verdict.shadow else "") + config.name,
        value=verdict.value,
        category=verdict.category,
        comment=verdict.comment,
        source=work.verification.verifier.source,
        retracts=None if work.before is None else _event_id(work, index, work.before),
    )


def _person(work: _Work, index: int | None) -> str | None:
    """Return the user whose words the comment may repeat: of the observed step, else the first of the trajectory."""
    read = work.case.observed_step_index if index is None and work.case is not None else index
    first = next(iter(work.users.values()), None)
    return first if read is None else work.users.get(read, first)


def _event_id(work: _Work, index: int | None, digest: str) -> str:
    """Return an id that is equal for the same trajectory, verification, step and source events."""
    place = "" if index is None else index
    return derived_id(JOB, work.trajectory.trajectory_id, work.verification.config.name, place, digest)


def _step_key(name: bytes, index: int) -> bytes:
    return _STEP + name + _INDEX.pack(index)
