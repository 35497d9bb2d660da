"""Publish the label of a trajectory: a new revision whenever its inputs change."""

from collections.abc import Mapping, Sequence
from typing import Any

from stepstream.crypto.sealing import is_erased
from stepstream.jobs.governance.trajectory_policy import TrajectoryPolicies, TrajectoryPolicy
from stepstream.jobs.labels import JOB
from stepstream.jobs.labels.build_label import REOPENED, build_label, without_content
from stepstream.jobs.labels.demonstrations import unretracted_demonstrations
from stepstream.jobs.labels.state import LabelState
from stepstream.jobs.labels.tool_results import reported_errors
from stepstream.jobs.labels.trajectory_state import TrajectoryState
from stepstream.jobs.rewards.counted_feedback import CountedFeedback, count_feedback
from stepstream.jobs.rewards.spec import VersionedSpec
from stepstream.jobs.rewards.spec_lookup import SpecLookup
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.state import Changes
from stepstream.topics.catalogue import LABELED_TRAJECTORIES
from stepstream.topics.events import Feedback, Step


class LabelPublisher:
    """Publishes the labels of one partition."""

    def __init__(self, state: LabelState, specs: SpecLookup, policies: TrajectoryPolicies) -> None:
        self._state = state
        self._specs = specs
        self._policies = policies

    def publish(self, name: bytes, trajectory: TrajectoryState, changes: Changes, out: Outputs) -> None:
        """Publish a revision if the inputs differ from those of the last one; of an open trajectory, one that
        withdraws its label.

        Publish nothing while state is rebuilt: these revisions are on the log, and `restore_published` reads them.

        Raises:
            InvalidRecord: the label does not fit a Kafka record.
        """
        if out.replaying:
            return
        _, tenant, agent, started_us, environment = trajectory.first
        policy = self._policies.of(tenant, agent, trajectory.users, started_us)
        if policy.erased and not trajectory.erased:
            self._erase(name, trajectory, changes, out)
            return
        self._state.load_all(name, trajectory, changes)
        versioned = self._specs.of(environment, agent)
        counted = count_feedback(versioned.spec, trajectory.signals, trajectory.closed_ms)
        demonstrations = unretracted_demonstrations(trajectory.feedback.values())
        given_up = _given_up(trajectory, versioned, counted)
        errors = reported_errors(trajectory.signals)
        demonstrated = [signal["id"] for signal in demonstrations]
        other_inputs = policy.inputs() | _decisions(trajectory, given_up, demonstrated, errors)
        if not trajectory.is_closed:
            other_inputs[REOPENED] = True
        digest = trajectory.inputs_digest(versioned.identity, counted.signals, other_inputs)
        if trajectory.has_label(JOB, digest):
            return
        steps = self._state.steps(name, trajectory, changes)
        if any(map(is_erased, steps)):
            self._erase(name, trajectory, changes, out)
            return
        sources = (signal["source_id"] for signal in demonstrations)
        feedback = self._state.demonstrations(name, sources, changes)
        self._emit(trajectory, steps, feedback, errors, digest, versioned, counted, given_up, policy, out)
        self._state.release_steps(name, trajectory)

    def _erase(self, name: bytes, trajectory: TrajectoryState, changes: Changes, out: Outputs) -> None:
        """Delete the content of a trajectory, and publish a last revision without content."""
        steps = self._state.steps(name, trajectory, changes)
        self._state.remove_persons(name, trajectory, changes)
        self._state.delete_content(name, trajectory, changes)  # loads all entries
        trajectory.erase()
        digest = trajectory.inputs_digest("", [], {"erased": True})
        if trajectory.has_label(JOB, digest):
            return
        versioned = self._specs.of(trajectory.environment, trajectory.agent)
        counted = count_feedback(versioned.spec, [], trajectory.closed_ms)
        self._emit(trajectory, steps, [], {}, digest, versioned, counted, [], TrajectoryPolicy(consent="none"), out)

    def _emit(
        self,
        trajectory: TrajectoryState,
        steps: list[Step],
        demonstrations: list[Feedback],
        tool_errors: Mapping[str, str],
        digest: str,
        versioned: VersionedSpec,
        counted: CountedFeedback,
        given_up: list[str],
        policy: TrajectoryPolicy,
        out: Outputs,
    ) -> None:
        revision, closure = trajectory.revision + 1, trajectory.closure
        trajectory.opened_us = trajectory.opened_us or steps[0]["occurred_at_us"]
        label = build_label(
            steps,
            counted,
            demonstrations,
            tool_errors,
            versioned=versioned,
            policy=policy,
            hold_reasons=trajectory.hold_reasons,
            released=bool(trajectory.released),
            given_up=given_up,
            end=trajectory.end,
            closed_by=trajectory.closed_by,
            last_step_index=trajectory.last_step_index,
            event_id=trajectory.label_event_id(JOB, revision, digest),
            occurred_at_us=max(
                trajectory.newest_us,
                closure[2] if closure is not None else 0,
                *(signal["at"] for signal in counted.signals),
                *(feedback["occurred_at_us"] for feedback in demonstrations),
                *(at for at, *_ in [*trajectory.holds.values(), trajectory.released or [0]]),
                *(trajectory.given_up[component][0] for component in given_up),
            ),
            revision=revision,
            opened_at_us=trajectory.opened_us,
            job=JOB,
        )
        if trajectory.erased:
            label = without_content(label)
        out.emit(LABELED_TRAJECTORIES, label["group_id"] or trajectory.trajectory_id, label)
        trajectory.revision, trajectory.label_id = revision, label["event_id"]
        trajectory.withdrawn = REOPENED in label["flags"]


def _given_up(trajectory: TrajectoryState, versioned: VersionedSpec, counted: CountedFeedback) -> list[str]:
    """Return the missing reward components for which the job no longer waits."""
    missing = counted.missing(versioned.spec, trajectory.indices)
    return [component for component in missing if component in trajectory.given_up]


def _decisions(
    trajectory: TrajectoryState,
    given_up: Sequence[str],
    demonstrations: Sequence[str],
    tool_errors: Mapping[str, str],
) -> dict[str, Any]:
    """Return the inputs beside steps, feedback and policy. Defaults are left out, so that old digests stay valid."""
    decisions = {
        "held": trajectory.hold_reasons,
        "released": bool(trajectory.released),
        "given_up": list(given_up),
        "demonstrations": list(demonstrations),
        "tool_errors": dict(tool_errors),
        # Earlier releases sealed labels of several users under the key of one: they need a new revision.
        "shared": len(trajectory.users) > 1,
    }
    return {name: value for name, value in decisions.items() if value}
