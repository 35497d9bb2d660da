"""Decide when `label` stops waiting for the end of a trajectory or for required reward components.

A decision is an event on `closures`. It takes effect when the job reads it back.
"""

from stepstream.config import LabelSettings
from stepstream.jobs.labels import JOB
from stepstream.jobs.labels.deadlines import Deadlines
from stepstream.jobs.labels.state import LabelState
from stepstream.jobs.labels.trajectory_state import TrajectoryState
from stepstream.jobs.rewards.counted_feedback import count_feedback
from stepstream.jobs.rewards.spec_lookup import SpecLookup
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.state import Changes
from stepstream.topics.catalogue import CLOSURES
from stepstream.topics.events import TrajectoryClosed, new_trajectory_closed
from stepstream.topics.ids import derived_id


class Timeouts:
    """Timeouts of one partition."""

    def __init__(self, state: LabelState, specs: SpecLookup, settings: LabelSettings) -> None:
        """Restore the deadlines of the waiting trajectories.

        Args:
            state: trajectories of the partition.
            specs: reward specifications.
            settings: the timeouts.
        """
        self._state = state
        self._specs = specs
        self._settings = settings
        self._deadlines = Deadlines()
        for name, trajectory in state.waiting():
            self._schedule(name, trajectory)

    def update(self, name: bytes, trajectory: TrajectoryState, changes: Changes) -> None:
        """Start or stop waiting for a trajectory, according to its state."""
        if trajectory.is_settled and not self._component_deadlines(name, trajectory, changes):
            self._state.remove_waiting(name, changes)
        else:
            self._state.add_waiting(name, changes)
            self._schedule(name, trajectory, changes)

    def due(self, now_ms: int) -> bool:
        """Return True if a deadline has passed."""
        return self._deadlines.next_overdue(now_ms, self._stored_deadline) is not None

    def decide(self, now_ms: int, out: Outputs) -> None:
        """Emit the decisions that are due: close a trajectory, or stop waiting for reward components."""
        while (name := self._deadlines.next_overdue(now_ms, self._stored_deadline)) is not None:
            trajectory = self._state.waiting_trajectory(name)
            assert trajectory is not None
            out.emit(CLOSURES, trajectory.trajectory_id, self._decision(name, trajectory, now_ms))
            # If the decision is lost with this state, it is taken again.
            self._deadlines.reschedule(now_ms + int(self._settings.idle_timeout_s * 1000), name)

    def _decision(self, name: bytes, trajectory: TrajectoryState, now_ms: int) -> TrajectoryClosed:
        deadlines = self._component_deadlines(name, trajectory)
        components = sorted(component for component, deadline_ms in deadlines.items() if deadline_ms <= now_ms)
        reason = "waited" if components else self._closing(trajectory)[1]
        last, count = trajectory.highest_step, len(trajectory.indices)
        origin: tuple[str | int, ...] = (trajectory.trajectory_id, reason, last, count, *components)
        return new_trajectory_closed(
            event_id=derived_id(JOB, "closed", *origin, tenant=trajectory.tenant),
            occurred_at_us=now_ms * 1000,
            trajectory_id=trajectory.trajectory_id,
            reason=reason,
            last_step_index=last,
            steps=count,
            job=JOB,
            components=components,
            tenant=trajectory.owner,
        )

    def _schedule(self, name: bytes, trajectory: TrajectoryState, changes: Changes | None = None) -> None:
        deadline_ms = self._deadline(name, trajectory, changes)
        if deadline_ms is not None:
            self._deadlines.schedule(deadline_ms, name)

    def _stored_deadline(self, name: bytes) -> int | None:
        trajectory = self._state.waiting_trajectory(name)
        return None if trajectory is None else self._deadline(name, trajectory)

    def _deadline(self, name: bytes, trajectory: TrajectoryState, changes: Changes | None = None) -> int | None:
        if not trajectory.is_closed:
            return self._closing(trajectory)[0]
        return min(self._component_deadlines(name, trajectory, changes).values(), default=None)

    def _closing(self, trajectory: TrajectoryState) -> tuple[int, str]:
        """Return the deadline of an open trajectory (log time, ms), and the reason of its closure."""
        agent = trajectory.agent if trajectory.first else ""
        idle_ms = int(self._settings.idle_timeout_of(agent) * 1000)
        return trajectory.deadline_ms(idle_ms, int(self._settings.end_grace_s * 1000))

    def _component_deadlines(
        self, name: bytes, trajectory: TrajectoryState, changes: Changes | None = None
    ) -> dict[str, int]:
        """Return the reward components that a closed trajectory waits for, each with its deadline (log time, ms)."""
        if trajectory.erased or not trajectory.is_closed:
            return {}
        spec = self._specs.of(trajectory.environment, trajectory.agent).spec
        if not spec.required:
            return {}
        self._state.load_all(name, trajectory, changes)
        counted = count_feedback(spec, trajectory.signals, trajectory.closed_ms)
        missing = counted.missing(spec, trajectory.indices)
        return {
            component.name: trajectory.closed_ms + int((component.wait_s or 0.0) * 1000)
            for component in spec.required
            if component.name in missing and component.name not in trajectory.given_up
        }
