"""Fold the events of one partition into trajectories, and publish their labels.

State: the trajectories (`LabelState`), and the fingerprint of policies and reward specifications under which this
version of the job has reviewed all of them.
"""

import logging
from typing import Any, cast

from stepstream.config import LabelSettings
from stepstream.crypto.sealing import is_erased
from stepstream.jobs.governance.trajectory_policy import NoPolicies, TrajectoryPolicies
from stepstream.jobs.labels.build_label import REOPENED
from stepstream.jobs.labels.feedback_signal import source_of, superseded_by
from stepstream.jobs.labels.merge_records import merge_records
from stepstream.jobs.labels.publish import LabelPublisher
from stepstream.jobs.labels.review import Review
from stepstream.jobs.labels.state import DAY_MS, LabelState
from stepstream.jobs.labels.timeouts import Timeouts
from stepstream.jobs.labels.trajectory_state import TrajectoryState
from stepstream.jobs.labels.trajectory_store import name_of
from stepstream.jobs.rewards.counted_feedback import is_too_late
from stepstream.jobs.rewards.spec import RewardSpec
from stepstream.jobs.rewards.spec_lookup import SpecLookup
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import InvalidRecord, Record, RecordOrigin
from stepstream.jobs.runtime.retry import Decoder
from stepstream.jobs.runtime.state import Changes, PartitionState
from stepstream.topics.catalogue import CURATION, GOVERNED_FEEDBACK, GOVERNED_STEPS
from stepstream.topics.events import Curation, Feedback, Step, TrajectoryClosed
from stepstream.topics.label_precedence import label_precedence

log = logging.getLogger(__name__)

_DELETED_PER_TICK = 500
"""Trajectories deleted in one tick after their retention period."""


class LabelFold:
    """Fold of one partition."""

    def __init__(
        self,
        state: PartitionState,
        specs: SpecLookup,
        codec: Decoder,
        policies: TrajectoryPolicies | None = None,
        settings: LabelSettings = LabelSettings(),  # noqa: B008, frozen
    ) -> None:
        self._state = LabelState(state, codec)
        self._specs = specs
        self._policies: TrajectoryPolicies = policies or NoPolicies()
        self._timeouts = Timeouts(self._state, specs, settings)
        self._publisher = LabelPublisher(self._state, specs, self._policies)
        self._settings, self._swept_day = settings, 0
        self._review = Review(state, self._policies, specs)
        self._touched: dict[bytes, tuple[TrajectoryState, Record]] = {}

    def apply(self, record: Record, event: dict[str, Any], changes: Changes, out: Outputs) -> None:
        """Add an event to its trajectory.

        Raises:
            InvalidRecord: a step or feedback that contradicts the trajectory.
        """
        name, trajectory = self._state.find(event["tenant"], event["trajectory_id"], changes)
        if trajectory.erased:
            out.count(metrics.WITHHELD.labels(record.topic))
            return
        self._touched[name] = (trajectory, record)
        if record.topic == GOVERNED_STEPS:
            self._add_step(name, trajectory, cast(Step, event), record, changes, out)
        elif record.topic == GOVERNED_FEEDBACK:
            self._add_feedback(name, trajectory, cast(Feedback, event), record, changes, out)
        elif record.topic == CURATION:
            trajectory.curate(cast(Curation, event), record.timestamp_ms)
        else:
            trajectory.close(cast(TrajectoryClosed, event))
            feedback, holds = trajectory.feedback_count, len(trajectory.holds)
            if trajectory.closure is not None and not trajectory.indices and (feedback or holds):
                reason = f"closed trajectory has no saved step; it has {feedback} feedback events and {holds} holds"
                out.dead_letter(record, InvalidRecord("invalid", reason), counts=False)

    def end_batch(self, changes: Changes, out: Outputs) -> None:
        """Publish each label that became due: a first one, or a revision if its inputs have changed."""
        for name, (trajectory, record) in self._touched.items():
            if not trajectory.is_saved:
                trajectory.is_saved = True
                out.count(metrics.STATE_ADDED.labels("trajectory"))
            self._keep(name, trajectory, changes)
            self._list_orphan(name, trajectory, changes, out)
            # Once later steps have come, one revision withdraws the label until the next closure.
            if trajectory.is_closed or (trajectory.revision and not trajectory.withdrawn and trajectory.indices):
                try:
                    self._publisher.publish(name, trajectory, changes, out)
                except InvalidRecord as error:
                    error.tenant = trajectory.owner or ""
                    out.dead_letter(record, error)
            self._timeouts.update(name, trajectory, changes)
            self._state.put(name, trajectory, changes)
        partition = next((record.partition for _, record in self._touched.values()), 0)
        self._touched.clear()
        self._make_room(partition, changes, out)
        self._state.trim()

    def _keep(self, name: bytes, trajectory: TrajectoryState, changes: Changes) -> None:
        """Start the retention period of a trajectory that waits for no closure; stop that of a reopened one."""
        if trajectory.is_settled and trajectory.kept_day < 0:
            # Log time: imported history is saved as long as new events.
            trajectory.kept_day = trajectory.arrived_ms // DAY_MS
            self._state.add_expiry(trajectory.kept_day, name, changes)
        elif not trajectory.is_settled and trajectory.kept_day >= 0:
            self._state.remove_expiry(trajectory.kept_day, name, changes)
            trajectory.kept_day = -1

    def _list_orphan(self, name: bytes, trajectory: TrajectoryState, changes: Changes, out: Outputs) -> None:
        """Keep the list of trajectories with feedback and without steps."""
        if trajectory.indices:
            self._state.remove_orphan(name, trajectory, changes)
        elif not trajectory.orphan_ms and trajectory.feedback_count:
            self._state.add_orphan(name, trajectory, changes)
            out.count(metrics.STATE_ADDED.labels("orphan"))

    def _make_room(self, partition: int, changes: Changes, out: Outputs) -> None:
        """Delete the oldest trajectories without steps beyond the cap."""
        most = self._settings.max_orphans
        if self._state.orphans <= most:
            return
        reason = f"no step of its trajectory has come, and more than {most} trajectories of its partition wait for one"
        for name, trajectory in self._state.oldest_orphans(self._state.orphans - most, changes):
            self._state.load_all(name, trajectory, changes)
            for entry in trajectory.feedback.values():
                if not trajectory.is_settled and "early" in entry:  # else its closure made a dead letter
                    offset, at_ms, size, digest = entry["early"]
                    key = trajectory.trajectory_id.encode()
                    origin = RecordOrigin(GOVERNED_FEEDBACK, partition, offset, at_ms, key, size, digest)
                    out.dead_letter(origin, InvalidRecord("invalid", reason, entry["tenant"] or ""), counts=False)
            self._state.delete(name, trajectory, changes)
            out.count(metrics.STATE_REMOVED.labels("orphan", "cap"))

    def due(self, now_ms: int) -> bool:
        """Return True if a deadline or retention period has passed, at the cap, or after a change of policies."""
        return self._timeouts.due(now_ms) or self._must_delete(now_ms) or self._review.due()

    def tick(self, now_ms: int, changes: Changes, out: Outputs) -> None:
        """Delete expired trajectories, decide timeouts, and review labels after a change of policies or specs."""
        if self._must_delete(now_ms):
            day, most = now_ms // DAY_MS, self._settings.max_trajectories
            deleted = self._state.delete_expired(day - self._settings.keep_days, most, _DELETED_PER_TICK, changes)
            if deleted.total() < _DELETED_PER_TICK:
                self._swept_day = day
            for why, count in deleted.items():
                out.count(metrics.STATE_REMOVED.labels("trajectory", why), count)
        # Before the review: timeouts are decided by what is written.
        self._timeouts.decide(now_ms, out)
        if not out.replaying:  # else it would be recorded as done, with nothing published
            self._review_changed(changes, out)

    def _must_delete(self, now_ms: int) -> bool:
        return now_ms // DAY_MS > self._swept_day or self._state.expiring > self._settings.max_trajectories

    def restore_published(self, event: dict[str, Any], changes: Changes) -> None:
        """Record a label that the job published before this state was built."""
        name, trajectory = self._state.find(event["tenant"], event["trajectory_id"], changes)
        known = label_precedence(trajectory.revision, trajectory.label_id)
        if label_precedence(event["revision"], event["event_id"]) >= known:
            trajectory.revision, trajectory.label_id = event["revision"], event["event_id"]
            trajectory.withdrawn = REOPENED in event["flags"]
        trajectory.opened_us = event["opened_at_us"] or trajectory.opened_us or event["started_at_us"]
        if trajectory.kept_day < 0 and not trajectory.indices:  # until its steps come, if they do
            trajectory.kept_day = event["occurred_at_us"] // 1000 // DAY_MS
            self._state.add_expiry(trajectory.kept_day, name, changes)
        self._state.put(name, trajectory, changes)
        self._state.trim()

    def _add_step(
        self, name: bytes, trajectory: TrajectoryState, step: Step, record: Record, changes: Changes, out: Outputs
    ) -> None:
        index, most = step["step_index"], self._settings.max_steps
        if index >= most:
            reason = f"step {index} of a trajectory that may have {most} steps: raise `label.max_steps`"
            raise InvalidRecord("oversized", reason)
        begins, persons = not trajectory.indices, len(trajectory.users)
        if begins:
            given = self._state.hand_over_unowned(name, trajectory, changes, rebuilding=out.replaying)
            if given:
                self._touched.pop(name_of(trajectory.trajectory_id), None)  # it is deleted
                self._touched.update({key: (one, record) for key, one in given.items()})
        self._state.load_step(name, trajectory, index, changes)
        assert record.value is not None
        content = record.value
        known = trajectory.steps.get(index)
        if known is not None and known[1] == superseded_by(step):
            poorer = self._state.step(name, index, changes)
            if not is_erased(poorer):
                step = merge_records(step, poorer)
                content = out.seal(GOVERNED_STEPS, step)
        outcome, replaced = trajectory.add_step(step, record.offset, record.timestamp_ms)
        if begins or len(trajectory.users) > persons:
            self._state.add_persons(name, trajectory, changes)
        if begins and trajectory.kept_day >= 0:
            # The retention period of a label without steps. It began at the event's time: `_keep` counts from arrival.
            self._state.remove_expiry(trajectory.kept_day, name, changes)
            trajectory.kept_day = -1
        if outcome == "known":
            out.count(metrics.DUPLICATES.labels(record.topic))
            return
        if outcome == "conflict":
            raise _conflict(index)
        if outcome != "taken":
            out.count(metrics.SUPERSEDED.labels(record.topic, outcome))
            return
        if replaced is not None:
            if replaced[1] == trajectory.steps[index][1]:
                out.count(metrics.SUPERSEDED.labels(record.topic, "older"))
            elif replaced[1] == superseded_by(step):
                out.count(metrics.SUPERSEDED.labels(record.topic, "poorer"))
            elif replaced[4]:
                out.count(metrics.SUPERSEDED.labels(record.topic, "retried"))
            else:
                value = self._state.stored_step(name, index, changes)
                before = Record(GOVERNED_STEPS, record.partition, replaced[5], record.timestamp_ms, record.key, value)
                out.dead_letter(before, _conflict(index, step["tenant"]))
        self._state.put_step(name, step, content, changes)

    def _add_feedback(
        self,
        name: bytes,
        trajectory: TrajectoryState,
        feedback: Feedback,
        record: Record,
        changes: Changes,
        out: Outputs,
    ) -> None:
        source = source_of(feedback)
        self._state.load_feedback(name, trajectory, source, changes)
        known = trajectory.feedback.get(source)
        if known is None and trajectory.feedback_count >= self._settings.max_feedback:
            reason = f"its trajectory has {trajectory.feedback_count} feedback events: raise `label.max_feedback`"
            raise InvalidRecord("oversized", reason)
        if not trajectory.add_feedback(feedback, record.timestamp_ms):
            out.count(metrics.DUPLICATES.labels(record.topic))
            return
        if feedback["demonstration"]:
            assert record.value is not None
            self._state.put_demonstration(name, source, record.value, changes)
        elif known is not None and known["demonstrates"]:
            self._state.delete_demonstration(name, source, changes)
        if not trajectory.indices:
            trajectory.add_early_feedback(feedback, RecordOrigin.of(record))
        elif trajectory.is_closed:
            signal = {"name": feedback["name"], "arrived": record.timestamp_ms}
            if is_too_late(self._spec_of(trajectory), signal, trajectory.closed_ms):
                out.count(metrics.LATE.labels(feedback["name"]))

    def _review_changed(self, changes: Changes, out: Outputs) -> None:
        """Review the next trajectories that a change of policies or specifications concerns."""
        for name in self._review.next_names(changes):
            trajectory = self._state.saved(name, changes)
            if trajectory is None or trajectory.erased:
                continue
            self._state.add_persons(name, trajectory, changes)  # states of earlier releases lack them
            if not (trajectory.is_closed or trajectory.revision) or not trajectory.indices:
                continue
            before = trajectory.revision
            try:
                self._publisher.publish(name, trajectory, changes, out)
            except InvalidRecord as error:
                log.error(
                    "cannot publish a revision after a change of consent or reward: %s; its label is stale", error
                )
            self._keep(name, trajectory, changes)
            self._timeouts.update(name, trajectory, changes)
            if trajectory.revision != before or trajectory.erased:
                self._state.put(name, trajectory, changes)

    def _spec_of(self, trajectory: TrajectoryState) -> RewardSpec:
        return self._specs.of(trajectory.environment, trajectory.agent).spec


def _conflict(index: int, tenant: str = "") -> InvalidRecord:
    return InvalidRecord("invalid", f"another event is step {index} of this trajectory", tenant)
