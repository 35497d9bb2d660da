"""What `label` does with the records of one partition: joins trajectories, closes them, labels them, looks again.

State, by a short name of the trajectory: its head, the records of its steps as they came (what is sealed stays
sealed), which ones are open, which go on which day, and up to which changes of consent all were looked at.
"""

import hashlib
import heapq
import logging
import struct
from typing import Any, cast

from stepstream.jobs import metrics
from stepstream.jobs.labelling import label, without_content
from stepstream.jobs.outputs import Outputs
from stepstream.jobs.record import Record, Refused
from stepstream.jobs.rewards import RewardSpec
from stepstream.jobs.standing import NoRules, Rules, Standing
from stepstream.jobs.state import Changes, PartitionState
from stepstream.jobs.trajectory import Head
from stepstream.jobs.waiting import Decoder
from stepstream.topics.events import Curation, Feedback, Step, TrajectoryClosed, new_trajectory_closed
from stepstream.topics.ids import derived_id
from stepstream.topics.seal import is_erased

log = logging.getLogger(__name__)

NAME = "label"
VERSION = "1"
JOB = f"{NAME}@{VERSION}"
STEPS, FEEDBACK, CLOSURES, LABELS = "governed-steps", "governed-feedback", "closures", "labeled-trajectories"
CURATION = "curation"

_HEAD, _STEP, _OPEN, _EXPIRY, _RULES = b"h", b"s", b"o", b"x", b"r"
_INDEX = struct.Struct(">i")
_DAY = struct.Struct(">I")
DAY_MS = 24 * 3600 * 1000
_CACHED_STEPS = 500
_CACHED_HEADS = 2_000
_LOOKED_AT = 500
"""Trajectories looked at again in one tick after consent changed."""


class LabelFold:
    """One partition of trajectories."""

    def __init__(
        self,
        state: PartitionState,
        spec: RewardSpec,
        codec: Decoder,
        rules: Rules | None = None,
        *,
        idle_timeout_s: float,
        end_grace_s: float,
        keep_days: int,
    ) -> None:
        self._state = state
        self._spec, self._spec_id = spec, spec.identity()
        self._keep_days, self._swept_day = keep_days, 0
        self._codec = codec
        self._rules: Rules = rules or NoRules()
        self._settled_rules = int.from_bytes(state.get(_RULES) or b"")
        self._looking: tuple[int, list[bytes]] | None = None
        self._idle_ms, self._grace_ms = int(idle_timeout_s * 1000), int(end_grace_s * 1000)
        self._heads: dict[bytes, Head] = {}
        self._steps: dict[bytes, Step] = {}
        self._touched: dict[bytes, tuple[Head, Record]] = {}
        self._deadlines: list[tuple[int, bytes]] = []
        self._watched: dict[bytes, int] = {}
        for name, _ in state.scan(_OPEN):
            packed = state.get(_HEAD + name)
            if packed is not None:
                self._watch(name, Head.unpack(packed))

    def apply(self, record: Record, event: dict[str, Any], changes: Changes, out: Outputs) -> None:
        """Notes an event with its trajectory."""
        name = _name(event["trajectory_id"])
        head = self._head(name, event["trajectory_id"], changes)
        if head.erased:
            out.count(metrics.WITHHELD.labels(record.topic))
            return
        self._touched[name] = (head, record)
        if record.topic == STEPS:
            self._add_step(name, head, cast(Step, event), record, changes, out)
        elif record.topic == FEEDBACK:
            if not head.add_feedback(cast(Feedback, event), record.timestamp_ms):
                out.count(metrics.DUPLICATES.labels(record.topic))
        elif record.topic == CURATION:
            head.curate(cast(Curation, event), record.timestamp_ms)
        else:
            head.close(cast(TrajectoryClosed, event))
            if not head.steps:
                changes.delete(_OPEN + name)
                waited = f"{len(head.feedback)} events of feedback and {len(head.holds)} holds"
                raise Refused("invalid", f"no step came, or none is kept any more, of a trajectory with {waited}")

    def settle(self, changes: Changes, out: Outputs) -> None:
        """Publishes what became due: a first label, or a new revision where the inputs are others."""
        for name, (head, record) in self._touched.items():
            if head.closed:
                changes.delete(_OPEN + name)
                if head.kept_day < 0:
                    # By the log's time, so that imported history is kept as long as anything else.
                    head.kept_day = head.arrived_ms // DAY_MS
                    changes.put(_EXPIRY + _DAY.pack(head.kept_day) + name, b"")
                try:
                    self._publish(name, head, changes, out)
                except Refused as refused:
                    out.refuse(record, refused)
            elif head.closure is None:
                changes.put(_OPEN + name, b"")
                self._watch(name, head)
            changes.put(_HEAD + name, head.pack())
        self._touched.clear()
        if len(self._heads) > _CACHED_HEADS:
            self._heads.clear()
        if len(self._steps) > _CACHED_STEPS:
            self._steps.clear()

    def due(self, now_ms: int) -> bool:
        """Whether a trajectory may have waited or been kept long enough, or consent has changed."""
        return (
            self._overdue(now_ms) is not None
            or now_ms // DAY_MS > self._swept_day
            or self._looking is not None
            or self._rules.fingerprint() != self._settled_rules
        )

    def tick(self, now_ms: int, changes: Changes, out: Outputs) -> None:
        """Writes the decision to close what has waited long enough; it acts when the decision is read back.

        Gives a new revision, some trajectories a time, where consent has changed or somebody was erased.
        """
        self._forget(now_ms // DAY_MS, changes)
        self._look_again(changes, out)
        while (head := self._overdue(now_ms)) is not None:
            name = heapq.heappop(self._deadlines)[1]
            del self._watched[name]
            reason = head.deadline_ms(self._idle_ms, self._grace_ms)[1]
            last = max(map(int, head.steps), default=-1)
            closed = new_trajectory_closed(
                event_id=derived_id(JOB, "closed", head.trajectory_id, reason, last),
                occurred_at_us=now_ms * 1000,
                trajectory_id=head.trajectory_id,
                reason=reason,
                last_step_index=last,
                job=JOB,
            )
            out.emit(CLOSURES, head.trajectory_id, closed)
            # Should the decision get lost with this store, it is taken again.
            self._watch_until(now_ms + self._idle_ms, name)

    def published(self, event: dict[str, Any], changes: Changes) -> None:
        """Learns of a label that was published while this state was elsewhere."""
        name = _name(event["trajectory_id"])
        head = self._head(name, event["trajectory_id"], changes)
        if event["revision"] >= head.revision:
            head.revision, head.label_id = event["revision"], event["event_id"]
        changes.put(_HEAD + name, head.pack())

    def _add_step(self, name: bytes, head: Head, step: Step, record: Record, changes: Changes, out: Outputs) -> None:
        key = self._step_key(name, step["step_index"])
        noted, replaced = head.add_step(step, record.offset, record.timestamp_ms)
        if noted == "known":
            out.count(metrics.DUPLICATES.labels(record.topic))
            return
        if noted == "conflict":
            raise _conflict(step["step_index"])
        if noted != "taken":
            out.count(metrics.SUPERSEDED.labels(record.topic, noted))
            return
        if replaced is not None:
            if replaced[1] == head.steps[str(step["step_index"])][1]:
                out.count(metrics.SUPERSEDED.labels(record.topic, "older"))
            elif replaced[4]:
                out.count(metrics.SUPERSEDED.labels(record.topic, "retried"))
            else:
                before = Record(STEPS, record.partition, replaced[5], record.timestamp_ms, record.key, changes.get(key))
                out.refuse(before, _conflict(step["step_index"]))
        assert record.value is not None
        changes.put(key, record.value)
        self._steps[key] = step

    def _publish(self, name: bytes, head: Head, changes: Changes, out: Outputs) -> None:
        """Publishes a revision where the inputs are others than those of the last one.

        While state is rebuilt, nothing: what followed from these inputs was published then, and `published` tells it.
        """
        if out.silent:
            return
        if not head.erased and self._standing(head).erased:
            self._erase(name, head, changes, out)
            return
        digest, signals, standing = self._inputs(head)
        if head.revision and head.label_event_id(JOB, head.revision, digest) == head.label_id:
            return
        steps = [self._step(name, index, changes) for index in sorted(map(int, head.steps))]
        if any(map(is_erased, steps)):
            self._erase(name, head, changes, out)
            return
        self._emit(head, steps, digest, signals, standing, out)
        for step in steps:
            self._steps.pop(self._step_key(name, step["step_index"]), None)

    def _inputs(self, head: Head) -> tuple[str, list[dict[str, Any]], Standing]:
        """What a label would be made from, beside the steps, and a digest of all of it."""
        used = {component.feedback for component in self._spec.component}
        signals = [signal for signal in head.signals() if signal["name"] in used]
        standing = self._standing(head)
        decided = {"held": head.held, "released": bool(head.released)}
        rules = standing.inputs() | {kind: value for kind, value in decided.items() if value}
        return head.inputs_digest(self._spec_id, signals, rules), signals, standing

    def _standing(self, head: Head) -> Standing:
        _, tenant, agent, started_us = head.first
        return self._rules.standing(tenant, agent, head.users, started_us)

    def _emit(
        self,
        head: Head,
        steps: list[Step],
        digest: str,
        signals: list[dict[str, Any]],
        standing: Standing,
        out: Outputs,
    ) -> None:
        revision = head.revision + 1
        closed_us = head.closure[2] if head.closure is not None else 0
        decided = [*head.holds.values(), head.released or [0]]
        labelled = label(
            steps,
            signals,
            spec=self._spec,
            standing=standing,
            held=head.held,
            released=bool(head.released),
            end=head.end,
            closed_by=head.closed_by,
            last_step_index=head.last_step_index,
            event_id=head.label_event_id(JOB, revision, digest),
            occurred_at_us=max(
                head.newest_us, closed_us, *(signal["at"] for signal in signals), *(at for at, *_ in decided)
            ),
            revision=revision,
            job=JOB,
        )
        if head.erased:
            labelled = without_content(labelled)
        out.emit(LABELS, labelled["group_id"] or head.trajectory_id, labelled)
        head.revision, head.label_id = revision, labelled["event_id"]

    def _erase(self, name: bytes, head: Head, changes: Changes, out: Outputs) -> None:
        """Drops what is kept of a trajectory, and publishes its last revision: that it was."""
        steps = [self._step(name, index, changes) for index in sorted(map(int, head.steps))]
        for index in head.steps:
            key = self._step_key(name, int(index))
            changes.delete(key)
            self._steps.pop(key, None)
        head.erase()
        digest = head.inputs_digest("", [], {"erased": True})
        if not head.revision or head.label_event_id(JOB, head.revision, digest) != head.label_id:
            self._emit(head, steps, digest, [], Standing(consent="none"), out)

    def _look_again(self, changes: Changes, out: Outputs) -> None:
        """After a change of consent or an erasure: some of the trajectories kept, until all were looked at."""
        if self._looking is None:
            fingerprint = self._rules.fingerprint()
            if fingerprint == self._settled_rules:
                return
            self._looking = fingerprint, [name for name, _ in self._state.scan(_HEAD)]
        fingerprint, names = self._looking
        for name in names[-_LOOKED_AT:]:
            packed = changes.get(_HEAD + name)
            head = self._heads.get(name) or (Head.unpack(packed) if packed is not None else None)
            if head is None or head.erased or not head.closed:
                continue
            before = head.revision
            try:
                self._publish(name, head, changes, out)
            except Refused as refused:
                log.error("no new revision of a trajectory whose consent has changed: %s", refused)
            if head.revision != before or head.erased:
                changes.put(_HEAD + name, head.pack())
        del names[-_LOOKED_AT:]
        if not names:
            self._settled_rules, self._looking = fingerprint, None
            changes.put(_RULES, fingerprint.to_bytes(16))

    def _step(self, name: bytes, index: int, changes: Changes) -> Step:
        key = self._step_key(name, index)
        step = self._steps.get(key)
        if step is None:
            step = cast(Step, self._codec.decode(STEPS, changes.get(key)))
        return step

    @staticmethod
    def _step_key(name: bytes, index: int) -> bytes:
        return _STEP + name + _INDEX.pack(index)

    def _head(self, name: bytes, trajectory_id: str, changes: Changes) -> Head:
        head = self._heads.get(name)
        if head is None:
            packed = changes.get(_HEAD + name)
            head = Head(trajectory_id) if packed is None else Head.unpack(packed)
            self._heads[name] = head
        return head

    def _overdue(self, now_ms: int) -> Head | None:
        """The trajectory on top of the deadlines, if its time has come; puts off or drops those whose has not."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            deadline_ms, name = self._deadlines[0]
            if self._watched.get(name) == deadline_ms:
                packed = self._state.get(_HEAD + name)
                if packed is not None and self._state.get(_OPEN + name) is not None:
                    head = Head.unpack(packed)
                    later_ms, _ = head.deadline_ms(self._idle_ms, self._grace_ms)
                    if later_ms <= now_ms:
                        return head
                    self._watched[name] = later_ms
                    heapq.heapreplace(self._deadlines, (later_ms, name))
                    continue
                del self._watched[name]
            heapq.heappop(self._deadlines)
        return None

    def _forget(self, today: int, changes: Changes) -> None:
        """Drops, once a day, the trajectories that closed before the days for which they are kept."""
        if today <= self._swept_day:
            return
        self._swept_day = today
        for entry, _ in self._state.scan(_EXPIRY):
            if _DAY.unpack_from(entry)[0] >= today - self._keep_days:
                break
            name = entry[_DAY.size :]
            head = self._head(name, "", changes)
            for key in (_EXPIRY + entry, _HEAD + name, *(self._step_key(name, int(index)) for index in head.steps)):
                changes.delete(key)
            del self._heads[name]

    def _watch(self, name: bytes, head: Head) -> None:
        self._watch_until(head.deadline_ms(self._idle_ms, self._grace_ms)[0], name)

    def _watch_until(self, deadline_ms: int, name: bytes) -> None:
        """Looks at a trajectory no later than this; a later deadline is found out when the earlier one comes."""
        if deadline_ms < self._watched.get(name, deadline_ms + 1):
            self._watched[name] = deadline_ms
            heapq.heappush(self._deadlines, (deadline_ms, name))


def _conflict(index: int) -> Refused:
    return Refused("invalid", f"another event is step {index} of this trajectory")


def _name(trajectory_id: str) -> bytes:
    """A short key of fixed length for a trajectory."""
    return hashlib.blake2b(trajectory_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
