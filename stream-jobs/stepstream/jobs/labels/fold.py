"""What `label` does with the records of one partition: joins trajectories, closes them, labels them, looks again.

State: the trajectories (`store.py`), and up to which changes of consent and of reward specifications all of them
were looked at by this version of the job.
"""

import logging
from typing import Any, cast

from stepstream.jobs.governance.trajectory_policy import NoPolicies, TrajectoryPolicies
from stepstream.jobs.labels import CURATION, VERSION
from stepstream.jobs.labels.publish import LabelPublisher
from stepstream.jobs.labels.state import DAY_MS, FEEDBACK, STEPS, LabelState, name_of
from stepstream.jobs.labels.timeouts import Timeouts
from stepstream.jobs.labels.trajectory_state import TrajectoryState, source_of
from stepstream.jobs.rewards.counted_feedback import too_late
from stepstream.jobs.rewards.spec_lookup import SpecLookup
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import InvalidRecord, Record, RecordOrigin
from stepstream.jobs.runtime.retry import Decoder
from stepstream.jobs.runtime.state import Changes, PartitionState
from stepstream.topics.events import Curation, Feedback, Step, TrajectoryClosed

log = logging.getLogger(__name__)

_SETTLED = b"r" + VERSION.encode()
_LOOKED_AT = 500
"""Trajectories looked at again in one tick after consent or a reward specification changed."""


class LabelFold:
    """One partition of trajectories."""

    def __init__(
        self,
        state: PartitionState,
        specs: SpecLookup,
        codec: Decoder,
        rules: TrajectoryPolicies | None = None,
        *,
        idle_timeout_s: float,
        end_grace_s: float,
        keep_days: int,
    ) -> None:
        self._store = LabelState(state, codec)
        self._specs = specs
        self._rules: TrajectoryPolicies = rules or NoPolicies()
        self._waits = Timeouts(self._store, specs, idle_timeout_s=idle_timeout_s, end_grace_s=end_grace_s)
        self._publishing = LabelPublisher(self._store, self._waits, self._rules)
        self._keep_days, self._swept_day = keep_days, 0
        settled = state.get(_SETTLED)
        self._settled_rules = None if settled is None else int.from_bytes(settled)
        self._looking: tuple[int, list[bytes]] | None = None
        self._touched: dict[bytes, tuple[TrajectoryState, Record]] = {}

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
                told = f"no step came, or none is kept any more, of a trajectory with {waited}"
                out.dead_letter(record, InvalidRecord("invalid", told), counts=False)

    def end_batch(self, changes: Changes, out: Outputs) -> None:
        """Publishes what became due: a first label, or a new revision where the inputs are others."""
        for name, (head, record) in self._touched.items():
            if head.closed and head.kept_day < 0:
                # By the log's time, so that imported history is kept as long as anything else.
                head.kept_day = head.arrived_ms // DAY_MS
                self._store.expires(head.kept_day, name, changes)
            if head.closed:
                try:
                    self._publishing.publish(name, head, changes, out)
                except InvalidRecord as refused:
                    refused.tenant = head.owner or ""
                    out.dead_letter(record, refused)
            self._waits.note(name, head, changes)
            self._store.put(name, head, changes)
        self._touched.clear()
        self._store.trim()

    def due(self, now_ms: int) -> bool:
        """Whether a trajectory may have waited or been kept long enough, or consent, a specification or we changed."""
        return (
            self._waits.due(now_ms)
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
        self._waits.decide(now_ms, out)

    def restore_published(self, event: dict[str, Any], changes: Changes) -> None:
        """Learns of a label that was published while this state was elsewhere."""
        name = name_of(event["trajectory_id"])
        head = self._store.head(name, event["trajectory_id"], changes)
        if event["revision"] >= head.revision:
            head.revision, head.label_id = event["revision"], event["event_id"]
        self._store.put(name, head, changes)

    def _add_step(
        self, name: bytes, head: TrajectoryState, step: Step, record: Record, changes: Changes, out: Outputs
    ) -> None:
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
                out.dead_letter(before, _conflict(index, step["tenant"]))
        assert record.value is not None
        self._store.put_step(name, step, record.value, changes)

    def _add_feedback(
        self, name: bytes, head: TrajectoryState, feedback: Feedback, record: Record, changes: Changes, out: Outputs
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
            head.came_early(feedback, RecordOrigin.of(record))
        elif head.closed:
            signal = {"name": feedback["name"], "arrived": record.timestamp_ms}
            if too_late(self._waits.declared(head).spec, signal, head.closed_ms):
                out.count(metrics.LATE.labels(feedback["name"]))

    def _disown(self, name: bytes, head: TrajectoryState, first: Record, changes: Changes, out: Outputs) -> None:
        """Refuses feedback of other tenants that came before the first step told whose the trajectory is."""
        whose = {source: entry["tenant"] for source, entry in head.feedback.items()}
        for source, place in head.disown().items():
            self._store.drop_demonstration(name, source, changes)
            if place is not None:
                offset, at_ms, size, digest = place
                out.dead_letter(
                    RecordOrigin(FEEDBACK, first.partition, offset, at_ms, first.key, size, digest),
                    _foreign(whose[source]),
                )

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
                self._publishing.publish(name, head, changes, out)
            except InvalidRecord as refused:
                log.error("no new revision of a trajectory whose consent or reward has changed: %s", refused)
            self._waits.note(name, head, changes)
            if head.revision != before or head.erased:
                self._store.put(name, head, changes)
        del names[-_LOOKED_AT:]
        if not names:
            self._settled_rules, self._looking = fingerprint, None
            changes.put(_SETTLED, fingerprint.to_bytes(16))

    def _fingerprint(self) -> int:
        return self._rules.fingerprint() << 64 | self._specs.fingerprint()


def _foreign(tenant: str = "") -> InvalidRecord:
    return InvalidRecord("invalid", "it names another tenant than the first step of this trajectory", tenant)


def _conflict(index: int, tenant: str = "") -> InvalidRecord:
    return InvalidRecord("invalid", f"another event is step {index} of this trajectory", tenant)
