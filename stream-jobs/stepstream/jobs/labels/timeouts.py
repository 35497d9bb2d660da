"""What `label` still waits for: the end of a trajectory, or parts of its reward; and the decision to wait no longer."""

from stepstream.jobs.labels import CLOSURES, JOB
from stepstream.jobs.labels.deadlines import Deadlines
from stepstream.jobs.labels.state import LabelState
from stepstream.jobs.labels.trajectory_state import TrajectoryState
from stepstream.jobs.rewards.counted_feedback import CountedFeedback, count_feedback
from stepstream.jobs.rewards.spec import Declared
from stepstream.jobs.rewards.spec_lookup import SpecLookup
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.state import Changes
from stepstream.topics.events import TrajectoryClosed, new_trajectory_closed
from stepstream.topics.ids import derived_id


class Timeouts:
    """Of one partition. Decisions act when they are read back."""

    def __init__(self, store: LabelState, specs: SpecLookup, *, idle_timeout_s: float, end_grace_s: float) -> None:
        """`idle_timeout_s` ends a trajectory without a word; `end_grace_s` is for what comes after its end."""
        self._store = store
        self._specs = specs
        self._idle_ms, self._grace_ms = int(idle_timeout_s * 1000), int(end_grace_s * 1000)
        self._deadlines = Deadlines()
        for name, head in store.waiting():
            self._watch(name, head)

    def declared(self, head: TrajectoryState) -> Declared:
        """The reward specification of a trajectory."""
        _, _, agent, _, environment = head.first
        return self._specs.of(environment, agent)

    def evidence(self, head: TrajectoryState) -> CountedFeedback:
        """What has been said of a trajectory, as its specification reads it."""
        return count_feedback(self.declared(head).spec, head.signals, head.closed_ms)

    def due(self, now_ms: int) -> bool:
        """Whether something may have been waited for long enough."""
        return self._deadlines.overdue(now_ms, self._deadline) is not None

    def decide(self, now_ms: int, out: Outputs) -> None:
        """Writes the decisions that are due: to close a trajectory, or to wait for its reward no longer."""
        while (name := self._deadlines.overdue(now_ms, self._deadline)) is not None:
            head = self._store.waiting_for(name)
            assert head is not None
            out.emit(CLOSURES, head.trajectory_id, self._decision(head, now_ms))
            # Should the decision get lost with this store, it is taken again.
            self._deadlines.put_off(now_ms + self._idle_ms, name)

    def note(self, name: bytes, head: TrajectoryState, changes: Changes) -> None:
        """Notes whether a decision in time is still to be taken about a trajectory."""
        if head.closed and not self._waits(head):
            self._store.settled(name, changes)
        elif head.closed or head.closure is None:
            self._store.wait(name, changes)
            self._watch(name, head)

    def _waits(self, head: TrajectoryState) -> dict[str, int]:
        """The components of its reward that a closed trajectory waits for, and until when (log time)."""
        if head.erased:
            return {}
        spec = self.declared(head).spec
        if not spec.required:
            return {}
        lacking = self.evidence(head).lacking(spec, map(int, head.steps))
        return {
            component.name: head.closed_ms + int((component.wait_s or 0.0) * 1000)
            for component in spec.required
            if component.name in lacking and component.name not in head.given_up
        }

    def _deadline_of(self, head: TrajectoryState) -> int | None:
        if not head.closed:
            return head.deadline_ms(self._idle_ms, self._grace_ms)[0]
        return min(self._waits(head).values(), default=None)

    def _deadline(self, name: bytes) -> int | None:
        head = self._store.waiting_for(name)
        return None if head is None else self._deadline_of(head)

    def _decision(self, head: TrajectoryState, now_ms: int) -> TrajectoryClosed:
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

    def _watch(self, name: bytes, head: TrajectoryState) -> None:
        deadline_ms = self._deadline_of(head)
        if deadline_ms is not None:
            self._deadlines.no_later(deadline_ms, name)
