"""What `label` does with the records of one partition: joins trajectories, closes them, labels them, looks again.

State: the trajectories (`store.py`), and up to which changes of consent and of reward specifications all of them
were looked at.
"""

import logging
from typing import Any, cast

from stepstream.jobs.governance.standing import NoRules, Rules, Standing
from stepstream.jobs.labels.deadlines import Deadlines
from stepstream.jobs.labels.demonstrations import standing_demonstrations
from stepstream.jobs.labels.labelling import label, without_content
from stepstream.jobs.labels.store import DAY_MS, FEEDBACK, STEPS, LabelStore, name_of
from stepstream.jobs.labels.trajectory import Head, source_of
from stepstream.jobs.rewards.evidence import Evidence, gather, too_late
from stepstream.jobs.rewards.spec import Declared
from stepstream.jobs.rewards.specifications import Specifications
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import Origin, Record, Refused
from stepstream.jobs.runtime.state import Changes, PartitionState
from stepstream.jobs.runtime.waiting import Decoder
from stepstream.topics.events import Curation, Feedback, Step, TrajectoryClosed, new_trajectory_closed
from stepstream.topics.ids import derived_id
from stepstream.topics.seal import is_erased

log = logging.getLogger(__name__)

NAME = "label"
VERSION = "1"
JOB = f"{NAME}@{VERSION}"
CLOSURES, LABELS, CURATION = "closures", "labeled-trajectories", "curation"

_SETTLED = b"r"
_LOOKED_AT = 500
"""Trajectories looked at again in one tick after consent or a reward specification changed."""


class LabelFold:
    """One partition of trajectories."""

    def __init__(
        self,
        state: PartitionState,
        specs: Specifications,
        codec: Decoder,
        rules: Rules | None = None,
        *,
        idle_timeout_s: float,
        end_grace_s: float,
        keep_days: int,
    ) -> None:
        self._state = state
        self._store = LabelStore(state, codec)
        self._specs = specs
        self._rules: Rules = rules or NoRules()
        self._keep_days, self._swept_day = keep_days, 0
        self._settled_rules = int.from_bytes(state.get(_SETTLED) or b"")
        self._looking: tuple[int, list[bytes]] | None = None
        self._idle_ms, self._grace_ms = int(idle_timeout_s * 1000), int(end_grace_s * 1000)
        self._touched: dict[bytes, tuple[Head, Record]] = {}
        self._deadlines = Deadlines()
        for name, head in self._store.waiting():
            self._watch(name, head)

    def apply(self, record: Record, event: dict[str, Any], changes: Changes, out: Outputs) -> None:
        """Notes an event with its trajectory."""
        name = name_of(event["trajectory_id"])
        head = self._store.head(name, event["trajectory_id"], changes)
        if head.erased:
            out.count(metrics.WITHHELD.labels(record.topic))
            return
        self._touched[name] = (head, record)
        if record.topic == STEPS:
            self._add_step(name, head, cast(Step, event), record, changes, out)
        elif record.topic == FEEDBACK:
            self._add_feedback(name, head, cast(Feedback, event), record, changes, out)
        elif record.topic == CURATION:
            head.curate(cast(Curation, event), record.timestamp_ms)
        else:
            head.close(cast(TrajectoryClosed, event))
            if not head.steps:
                self._store.settled(name, changes)
                waited = f"{len(head.feedback)} events of feedback and {len(head.holds)} holds"
                raise Refused("invalid", f"no step came, or none is kept any more, of a trajectory with {waited}")

    def settle(self, changes: Changes, out: Outputs) -> None:
        """Publishes what became due: a first label, or a new revision where the inputs are others."""
        for name, (head, record) in self._touched.items():
            if head.closed and head.kept_day < 0:
                # By the log's time, so that imported history is kept as long as anything else.
                head.kept_day = head.arrived_ms // DAY_MS
                self._store.expires(head.kept_day, name, changes)
            if head.closed:
                try:
                    self._publish(name, head, changes, out)
                except Refused as refused:
                    out.refuse(record, refused)
            self._await(name, head, changes)
            self._store.put(name, head, changes)
        self._touched.clear()
        self._store.trim()

    def due(self, now_ms: int) -> bool:
        """Whether a trajectory may have waited or been kept long enough, or consent or a specification changed."""
        return (
            self._deadlines.overdue(now_ms, self._deadline) is not None
            or now_ms // DAY_MS > self._swept_day
            or self._looking is not None
            or self._fingerprint() != self._settled_rules
        )

    def tick(self, now_ms: int, changes: Changes, out: Outputs) -> None:
        """Writes the decision to close what has waited long enough, or to wait for its reward no longer.

        The decision acts when it is read back. Gives a new revision, some trajectories a time, where consent or the
        reward specification has changed or somebody was erased.
        """
        if now_ms // DAY_MS > self._swept_day:
            self._swept_day = now_ms // DAY_MS
            self._store.forget_before(self._swept_day - self._keep_days, changes)
        self._look_again(changes, out)
        while (name := self._deadlines.overdue(now_ms, self._deadline)) is not None:
            head = self._store.waiting_for(name)
            assert head is not None
            out.emit(CLOSURES, head.trajectory_id, self._decision(head, now_ms))
            # Should the decision get lost with this store, it is taken again.
            self._deadlines.put_off(now_ms + self._idle_ms, name)

    def published(self, event: dict[str, Any], changes: Changes) -> None:
        """Learns of a label that was published while this state was elsewhere."""
        name = name_of(event["trajectory_id"])
        head = self._store.head(name, event["trajectory_id"], changes)
        if event["revision"] >= head.revision:
            head.revision, head.label_id = event["revision"], event["event_id"]
        self._store.put(name, head, changes)

    def _add_step(self, name: bytes, head: Head, step: Step, record: Record, changes: Changes, out: Outputs) -> None:
        index = step["step_index"]
        begins = head.owner is None
        noted, replaced = head.add_step(step, record.offset, record.timestamp_ms)
        if begins:
            self._disown(name, head, record, changes, out)
        if noted == "known":
            out.count(metrics.DUPLICATES.labels(record.topic))
            return
        if noted == "conflict":
            raise _conflict(index)
        if noted == "foreign":
            raise _foreign()
        if noted != "taken":
            out.count(metrics.SUPERSEDED.labels(record.topic, noted))
            return
        if replaced is not None:
            if replaced[1] == head.steps[str(index)][1]:
                out.count(metrics.SUPERSEDED.labels(record.topic, "older"))
            elif replaced[4]:
                out.count(metrics.SUPERSEDED.labels(record.topic, "retried"))
            else:
                value = self._store.stored_step(name, index, changes)
                before = Record(STEPS, record.partition, replaced[5], record.timestamp_ms, record.key, value)
                out.refuse(before, _conflict(index))
        assert record.value is not None
        self._store.put_step(name, step, record.value, changes)

    def _add_feedback(
        self, name: bytes, head: Head, feedback: Feedback, record: Record, changes: Changes, out: Outputs
    ) -> None:
        if head.foreign(feedback["tenant"]):
            raise _foreign()
        source = source_of(feedback)
        known = head.feedback.get(source)
        if not head.add_feedback(feedback, record.timestamp_ms):
            out.count(metrics.DUPLICATES.labels(record.topic))
            return
        if feedback["demonstration"]:
            assert record.value is not None
            self._store.put_demonstration(name, source, record.value, changes)
        elif known is not None and known["demonstrates"]:
            self._store.drop_demonstration(name, source, changes)
        if head.owner is None:
            head.came_early(feedback, Origin.of(record))
        elif head.closed:
            signal = {"name": feedback["name"], "arrived": record.timestamp_ms}
            if too_late(self._declared(head).spec, signal, head.closed_ms):
                out.count(metrics.LATE.labels(feedback["name"]))

    def _disown(self, name: bytes, head: Head, first: Record, changes: Changes, out: Outputs) -> None:
        """Refuses feedback of other tenants that came before the first step told whose the trajectory is."""
        for source, place in head.disown().items():
            self._store.drop_demonstration(name, source, changes)
            if place is not None:
                offset, at_ms, size, digest = place
                out.refuse(Origin(FEEDBACK, first.partition, offset, at_ms, first.key, size, digest), _foreign())

    def _publish(self, name: bytes, head: Head, changes: Changes, out: Outputs) -> None:
        """Publishes a revision where the inputs are others than those of the last one.

        While state is rebuilt, nothing: what followed from these inputs was published then, and `published` tells it.
        """
        if out.silent:
            return
        standing = self._standing(head)
        if not head.erased and standing.erased:
            self._erase(name, head, changes, out)
            return
        declared, evidence = self._declared(head), self._evidence(head)
        shown = standing_demonstrations(head.feedback.values())
        decided = {
            "held": head.held,
            "released": bool(head.released),
            "given_up": self._given_up(head, evidence),
            "demonstrations": [signal["id"] for signal in shown],
        }
        rules = standing.inputs() | {kind: value for kind, value in decided.items() if value}
        digest = head.inputs_digest(declared.identity, evidence.signals, rules)
        if head.revision and head.label_event_id(JOB, head.revision, digest) == head.label_id:
            return
        steps = self._store.steps(name, head, changes)
        if any(map(is_erased, steps)):
            self._erase(name, head, changes, out)
            return
        given = self._store.demonstrations(name, (signal["source_id"] for signal in shown), changes)
        self._emit(head, steps, given, digest, declared, evidence, standing, out)
        self._store.release_steps(name, head)

    def _declared(self, head: Head) -> Declared:
        _, _, agent, _, environment = head.first
        return self._specs.of(environment, agent)

    def _standing(self, head: Head) -> Standing:
        _, tenant, agent, started_us, _ = head.first
        return self._rules.standing(tenant, agent, head.users, started_us)

    def _evidence(self, head: Head) -> Evidence:
        return gather(self._declared(head).spec, head.signals, head.closed_ms)

    def _given_up(self, head: Head, evidence: Evidence) -> list[str]:
        """Reward components that have not come and are waited for no longer."""
        lacking = evidence.lacking(self._declared(head).spec, map(int, head.steps))
        return [component for component in lacking if component in head.given_up]

    def _emit(
        self,
        head: Head,
        steps: list[Step],
        demonstrations: list[Feedback],
        digest: str,
        declared: Declared,
        evidence: Evidence,
        standing: Standing,
        out: Outputs,
    ) -> None:
        revision = head.revision + 1
        given_up = self._given_up(head, evidence)
        labelled = label(
            steps,
            evidence,
            demonstrations,
            declared=declared,
            standing=standing,
            held=head.held,
            released=bool(head.released),
            given_up=given_up,
            end=head.end,
            closed_by=head.closed_by,
            last_step_index=head.last_step_index,
            event_id=head.label_event_id(JOB, revision, digest),
            occurred_at_us=max(
                head.newest_us,
                head.closure[2] if head.closure is not None else 0,
                *(signal["at"] for signal in evidence.signals),
                *(feedback["occurred_at_us"] for feedback in demonstrations),
                *(at for at, *_ in [*head.holds.values(), head.released or [0]]),
                *(head.given_up[component][0] for component in given_up),
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
        steps = self._store.steps(name, head, changes)
        self._store.drop_content(name, head, changes)
        head.erase()
        digest = head.inputs_digest("", [], {"erased": True})
        if not head.revision or head.label_event_id(JOB, head.revision, digest) != head.label_id:
            declared = self._declared(head)
            evidence = gather(declared.spec, [], head.closed_ms)
            self._emit(head, steps, [], digest, declared, evidence, Standing(consent="none"), out)

    def _look_again(self, changes: Changes, out: Outputs) -> None:
        """After a change of consent, of a specification or an erasure: some of those kept, until all were looked at."""
        if self._looking is None:
            fingerprint = self._fingerprint()
            if fingerprint == self._settled_rules:
                return
            self._looking = fingerprint, self._store.names()
        fingerprint, names = self._looking
        for name in names[-_LOOKED_AT:]:
            head = self._store.kept(name, changes)
            if head is None or head.erased or not head.closed:
                continue
            before = head.revision
            try:
                self._publish(name, head, changes, out)
            except Refused as refused:
                log.error("no new revision of a trajectory whose consent or reward has changed: %s", refused)
            self._await(name, head, changes)
            if head.revision != before or head.erased:
                self._store.put(name, head, changes)
        del names[-_LOOKED_AT:]
        if not names:
            self._settled_rules, self._looking = fingerprint, None
            changes.put(_SETTLED, fingerprint.to_bytes(16))

    def _fingerprint(self) -> int:
        return self._rules.fingerprint() << 64 | self._specs.fingerprint()

    def _await(self, name: bytes, head: Head, changes: Changes) -> None:
        """Notes whether a decision in time is still to be taken about a trajectory."""
        if head.closed and not self._waits(head):
            self._store.settled(name, changes)
        elif head.closed or head.closure is None:
            self._store.wait(name, changes)
            self._watch(name, head)

    def _waits(self, head: Head) -> dict[str, int]:
        """The components of its reward that a closed trajectory waits for, and until when (log time)."""
        if head.erased:
            return {}
        spec = self._declared(head).spec
        if not spec.required:
            return {}
        lacking = self._evidence(head).lacking(spec, map(int, head.steps))
        return {
            component.name: head.closed_ms + int((component.wait_s or 0.0) * 1000)
            for component in spec.required
            if component.name in lacking and component.name not in head.given_up
        }

    def _deadline_of(self, head: Head) -> int | None:
        if not head.closed:
            return head.deadline_ms(self._idle_ms, self._grace_ms)[0]
        return min(self._waits(head).values(), default=None)

    def _deadline(self, name: bytes) -> int | None:
        head = self._store.waiting_for(name)
        return None if head is None else self._deadline_of(head)

    def _decision(self, head: Head, now_ms: int) -> TrajectoryClosed:
        """That a trajectory is over, or that some components of its reward are waited for no longer."""
        waits = self._waits(head) if head.closed else {}
        components = sorted(name for name, until_ms in waits.items() if until_ms <= now_ms)
        reason = "waited" if components else head.deadline_ms(self._idle_ms, self._grace_ms)[1]
        last = max(map(int, head.steps), default=-1)
        return new_trajectory_closed(
            event_id=derived_id(JOB, "closed", head.trajectory_id, reason, last, *components),
            occurred_at_us=now_ms * 1000,
            trajectory_id=head.trajectory_id,
            reason=reason,
            last_step_index=last,
            job=JOB,
            components=components,
        )

    def _watch(self, name: bytes, head: Head) -> None:
        deadline_ms = self._deadline_of(head)
        if deadline_ms is not None:
            self._deadlines.no_later(deadline_ms, name)


def _foreign() -> Refused:
    return Refused("invalid", "it names another tenant than the first step of this trajectory")


def _conflict(index: int) -> Refused:
    return Refused("invalid", f"another event is step {index} of this trajectory")
