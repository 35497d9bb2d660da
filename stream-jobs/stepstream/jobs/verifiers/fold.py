"""What `verify` does with the records of one partition: joins trajectories, has closed ones judged, publishes verdicts.

State, by a short name of the trajectory: what `labels/trajectory.py` remembers of it, its steps as they came (what is
sealed stays sealed), a digest of what it was judged by, and on which day it may be forgotten.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import orjson

from stepstream.crypto.sealing import is_erased
from stepstream.jobs.governance.consent import stricter
from stepstream.jobs.governance.trajectory_policy import TrajectoryPolicies
from stepstream.jobs.labels.trajectory_state import TrajectoryState
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import InvalidRecord, Record
from stepstream.jobs.runtime.retry import Decoder
from stepstream.jobs.runtime.state import Changes, PartitionState
from stepstream.jobs.verifiers.base import Case, Verdict
from stepstream.jobs.verifiers.cases import cases
from stepstream.jobs.verifiers.pool import Judged
from stepstream.jobs.verifiers.specification import Verification
from stepstream.topics.events import Consent, Feedback, Step, TrajectoryClosed, new_feedback
from stepstream.topics.ids import derived_id
from stepstream.topics.trusted_sources import SHADOW

NAME = "verify"
VERSION = "1"
JOB = f"{NAME}@{VERSION}"
STEPS, ENDS, CLOSURES, FEEDBACK = "governed-steps", "governed-feedback", "closures", "feedback"

_HEAD, _STEP, _DONE, _EXPIRY = b"h", b"s", b"v", b"x"
_INDEX = struct.Struct(">i")
_DAY = struct.Struct(">I")
_DAY_MS = 24 * 3600 * 1000


class Judges(Protocol):
    """Who judges; `Bench` is one."""

    def judge(self, work: Sequence[tuple[Verification, Case]]) -> list[Judged]:
        """What became of each case."""
        ...


@dataclass(frozen=True, slots=True)
class _Work:
    """One case to be judged, and what its feedback says beside the verdict."""

    record: Record
    head: TrajectoryState
    first: Step
    consent: Consent
    users: Mapping[int, str]
    """Whom the steps name, by their index, in order of that."""
    verification: Verification
    digest: str
    """Names the events that the trajectory is judged by."""
    before: str | None
    """That of the last time; None: it was never judged."""
    case: Case | None
    """None: what is to be read is not there."""


class VerifyFold:
    """One partition of trajectories."""

    def __init__(
        self,
        state: PartitionState,
        verifications: Sequence[Verification],
        judges: Judges,
        codec: Decoder,
        rules: TrajectoryPolicies,
        *,
        keep_days: int,
    ) -> None:
        self._state, self._codec, self._rules = state, codec, rules
        self._verifications, self._judges = verifications, judges
        self._keep_days, self._swept_day = keep_days, 0
        self._touched: dict[bytes, tuple[TrajectoryState, Record]] = {}

    def apply(self, record: Record, event: dict[str, Any], changes: Changes, out: Outputs) -> None:
        """Notes a step, or that a trajectory is over."""
        name = _name(event["trajectory_id"])
        head = self._head(name, event["trajectory_id"], changes)
        if record.topic != CLOSURES and head.foreign(event["tenant"]):
            return  # `label` tells of it
        if record.topic == STEPS:
            step = cast(Step, event)
            begins = head.owner is None
            noted, _ = head.add_step(step, record.offset, record.timestamp_ms)
            if begins:
                head.disown()
            if noted == "taken":
                assert record.value is not None
                changes.put(_step_key(name, step["step_index"]), record.value)
        elif record.topic == CLOSURES:
            head.close(cast(TrajectoryClosed, event))
        elif event["end"] == "open" or not head.add_feedback(cast(Feedback, event), record.timestamp_ms):
            return  # feedback tells nothing here but that a trajectory has ended
        self._touched[name] = head, record

    def end_batch(self, changes: Changes, out: Outputs) -> None:
        """Has what is closed judged, and publishes the verdicts."""
        work = []
        for name, (head, record) in self._touched.items():
            if head.closed and not head.erased:
                work += self._work(name, head, record, changes, out)
                if head.kept_day < 0:
                    head.kept_day = head.arrived_ms // _DAY_MS
                    changes.put(_EXPIRY + _DAY.pack(head.kept_day) + name, b"")
            changes.put(_HEAD + name, head.pack())
        self._touched.clear()
        if work and not out.silent:
            self._judge(work, out)

    def due(self, now_ms: int) -> bool:
        """Once a day, there are old trajectories to drop."""
        return now_ms // _DAY_MS > self._swept_day

    def tick(self, now_ms: int, changes: Changes, out: Outputs) -> None:
        """Drops the trajectories that closed before the days for which they are kept."""
        self._swept_day = now_ms // _DAY_MS
        for entry, _ in self._state.scan(_EXPIRY):
            if _DAY.unpack_from(entry)[0] >= self._swept_day - self._keep_days:
                break
            name = entry[_DAY.size :]
            steps = self._head(name, "", changes).steps
            for key in (_EXPIRY + entry, _HEAD + name, _DONE + name, *(_step_key(name, int(index)) for index in steps)):
                changes.delete(key)

    def restore_published(self, event: dict[str, Any], changes: Changes) -> None:
        """Nothing: what was verified is known from the steps."""

    def _work(self, name: bytes, head: TrajectoryState, record: Record, changes: Changes, out: Outputs) -> list[_Work]:
        """What is to be judged of a closed trajectory, and was not judged as it now is."""
        # By source events: governing history anew is no reason to judge it anew.
        seen = sorted((index, entry[1]) for index, entry in head.steps.items())
        digest = hashlib.blake2b(orjson.dumps(seen), digest_size=16).hexdigest()
        packed = changes.get(_DONE + name)
        before = None if packed is None else packed.decode()
        if before == digest:
            return []
        changes.put(_DONE + name, digest.encode())
        stored = [changes.get(_step_key(name, index)) for index in sorted(map(int, head.steps))]
        steps = [cast(Step, self._codec.decode(STEPS, value)) for value in stored]
        first = steps[0]
        standing = self._rules.standing(first["tenant"], first["agent"], head.users, first["occurred_at_us"])
        consent = stricter(standing.consent, *(step["consent"] for step in steps))
        withheld = consent == "none" or standing.erased or any(map(is_erased, steps))
        users = {step["step_index"]: step["user"] for step in steps if step["user"]}
        work: list[_Work] = []
        for verification in self._verifications:
            declared = verification.declared
            if not declared.applies(first["agent"], first["environment"], first["task_id"]):
                continue
            found = None if withheld else cases(verification, steps)
            if found is None:
                result = "withheld" if withheld else "unknown_task"
                out.count(metrics.VERIFIED.labels(declared.name, result))
                continue
            work += [_Work(record, head, first, consent, users, verification, digest, before, case) for case in found]
        return work

    def _judge(self, work: Sequence[_Work], out: Outputs) -> None:
        judged = iter(self._judges.judge([(one.verification, one.case) for one in work if one.case is not None]))
        for one in work:
            name = one.verification.declared.name
            result = Judged("verified", [Verdict(0.0, "missing")]) if one.case is None else next(judged)
            shadow = any(verdict.shadow for verdict in result.verdicts)
            out.count(metrics.VERIFIED.labels(name, "shadow" if shadow else result.became))
            if result.became == "unusable":
                out.dead_letter(one.record, InvalidRecord("invalid", f"verification '{name}': {result.reason}"))
            for verdict in result.verdicts:
                out.emit(FEEDBACK, one.head.trajectory_id, _feedback(one, verdict))

    def _head(self, name: bytes, trajectory_id: str, changes: Changes) -> TrajectoryState:
        touched = self._touched.get(name)
        if touched is not None:
            return touched[0]
        packed = changes.get(_HEAD + name)
        return TrajectoryState(trajectory_id) if packed is None else TrajectoryState.unpack(packed)


def _feedback(work: _Work, verdict: Verdict) -> Feedback:
    declared = work.verification.declared
    about_case = None if work.case is None else work.case.step_index
    index = about_case if verdict.step_index is None else verdict.step_index
    return new_feedback(
        event_id=_event_id(work, index, work.digest),
        occurred_at_us=work.head.newest_us,
        producer=f"{NAME}/{VERSION}",
        tenant=work.first["tenant"],
        consent=work.consent,
        user=_person(work, index),
        trajectory_id=work.head.trajectory_id,
        step_index=index,
        name=(SHADOW if verdict.shadow else "") + declared.name,
        value=verdict.value,
        category=verdict.category,
        comment=verdict.comment,
        source=work.verification.verifier.source,
        retracts=None if work.before is None else _event_id(work, index, work.before),
    )


def _person(work: _Work, index: int | None) -> str | None:
    """Whose words the comment may repeat: of the step that was read, else the first whom the trajectory names."""
    read = work.case.read_in if index is None and work.case is not None else index
    first = next(iter(work.users.values()), None)
    return first if read is None else work.users.get(read, first)


def _event_id(work: _Work, index: int | None, digest: str) -> str:
    """The same for the same trajectory, verification and step, as judged from the same events."""
    place = "" if index is None else index
    return derived_id(JOB, work.head.trajectory_id, work.verification.declared.name, place, digest)


def _step_key(name: bytes, index: int) -> bytes:
    return _STEP + name + _INDEX.pack(index)


def _name(trajectory_id: str) -> bytes:
    """A short key of fixed length for a trajectory."""
    return hashlib.blake2b(trajectory_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
