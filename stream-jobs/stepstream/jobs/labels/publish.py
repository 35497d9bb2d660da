"""Publishes what `build_label` makes of a trajectory: a revision wherever its inputs differ from the last one's."""

from stepstream.crypto.sealing import is_erased
from stepstream.jobs.governance.trajectory_policy import TrajectoryPolicies, TrajectoryPolicy
from stepstream.jobs.labels import JOB, LABELS
from stepstream.jobs.labels.build_label import build_label, without_content
from stepstream.jobs.labels.demonstrations import standing_demonstrations
from stepstream.jobs.labels.state import LabelState
from stepstream.jobs.labels.timeouts import Timeouts
from stepstream.jobs.labels.trajectory_state import TrajectoryState
from stepstream.jobs.rewards.counted_feedback import CountedFeedback, count_feedback
from stepstream.jobs.rewards.spec import Declared
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.state import Changes
from stepstream.topics.events import Feedback, Step


class LabelPublisher:
    """Of one partition."""

    def __init__(self, store: LabelState, waits: Timeouts, rules: TrajectoryPolicies) -> None:
        self._store = store
        self._waits = waits
        self._rules = rules

    def publish(self, name: bytes, head: TrajectoryState, changes: Changes, out: Outputs) -> None:
        """Publishes a revision where the inputs are others than those of the last one.

        While state is rebuilt, nothing: what followed from these inputs was published then, and `published` tells it.
        """
        if out.silent:
            return
        standing = self._standing(head)
        if not head.erased and standing.erased:
            self._erase(name, head, changes, out)
            return
        declared, evidence = self._waits.declared(head), self._waits.evidence(head)
        shown = standing_demonstrations(head.feedback.values())
        decided = {
            "held": head.held,
            "released": bool(head.released),
            "given_up": self._given_up(head, evidence),
            "demonstrations": [signal["id"] for signal in shown],
            "shared": len(head.users) > 1,  # such labels were once sealed under one person's key
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

    def _standing(self, head: TrajectoryState) -> TrajectoryPolicy:
        _, tenant, agent, started_us, _ = head.first
        return self._rules.standing(tenant, agent, head.users, started_us)

    def _given_up(self, head: TrajectoryState, evidence: CountedFeedback) -> list[str]:
        """Reward components that have not come and are waited for no longer."""
        lacking = evidence.lacking(self._waits.declared(head).spec, map(int, head.steps))
        return [component for component in lacking if component in head.given_up]

    def _emit(
        self,
        head: TrajectoryState,
        steps: list[Step],
        demonstrations: list[Feedback],
        digest: str,
        declared: Declared,
        evidence: CountedFeedback,
        standing: TrajectoryPolicy,
        out: Outputs,
    ) -> None:
        revision = head.revision + 1
        given_up = self._given_up(head, evidence)
        labelled = build_label(
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

    def _erase(self, name: bytes, head: TrajectoryState, changes: Changes, out: Outputs) -> None:
        """Drops what is kept of a trajectory, and publishes its last revision: that it was."""
        steps = self._store.steps(name, head, changes)
        self._store.drop_content(name, head, changes)
        head.erase()
        digest = head.inputs_digest("", [], {"erased": True})
        if not head.revision or head.label_event_id(JOB, head.revision, digest) != head.label_id:
            declared = self._waits.declared(head)
            evidence = count_feedback(declared.spec, [], head.closed_ms)
            self._emit(head, steps, [], digest, declared, evidence, TrajectoryPolicy(consent="none"), out)
