"""Run the label job over one partition, with policies that a test sets."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fold_harness import FoldRun, MemoryChanges, MemoryState
from stream_records import make_ending, make_steps

from stepstream.config import IdleTimeoutSettings, LabelSettings
from stepstream.jobs.governance.trajectory_policy import DecisionChange, TrajectoryPolicy
from stepstream.jobs.labels import JOB
from stepstream.jobs.labels.fold import LabelFold
from stepstream.jobs.rewards.spec import RewardSpec
from stepstream.jobs.rewards.spec_lookup import FixedSpec
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import Record
from stepstream.topics.events import Consent, new_governance
from stepstream.topics.ids import derived_id

STEPS, FEEDBACK, LABELS = "governed-steps", "governed-feedback", "labeled-trajectories"
NOW_MS = 1_760_000_100_000


def label_settings(**fields: Any) -> LabelSettings:
    """Return settings of `label` with short timeouts; `idle_timeouts` maps agents to seconds."""
    agents = [
        IdleTimeoutSettings(agents=[agent], idle_timeout_s=seconds)
        for agent, seconds in fields.pop("idle_timeouts", {}).items()
    ]
    values = {"idle_timeout_s": 600.0, "end_grace_s": 30.0, "keep_days": 30, "idle_timeouts": agents} | fields
    return LabelSettings(**values)


class FixedPolicies:
    """Trajectory policies from attributes; `lookups` counts the calls of `of`."""

    def __init__(self) -> None:
        self.policy = TrajectoryPolicy()
        self.users: dict[str, Consent] = {}
        self.erased: set[str] = set()
        self.changes = 0
        self.log: list[DecisionChange] = []
        self.lookups = 0

    def of(self, tenant: str, agent: str, users: Sequence[str], started_us: int) -> TrajectoryPolicy:
        self.lookups += 1
        levels: list[Consent] = [self.users.get(user, "train") for user in users]
        consent = min([self.policy.consent, *levels], key=["none", "analyse", "train"].index)
        return replace(self.policy, consent=consent, erased=bool(self.erased & set(users)))

    def fingerprint(self) -> int:
        return self.changes

    def changes_since(self, cursor: int | None) -> tuple[int, list[DecisionChange] | None]:
        return len(self.log), None if cursor is None else self.log[cursor:]

    def subject_of(self, tenant: str, user: str) -> str:
        return f"{tenant}:{user}"

    def change(self, **users: Consent) -> None:
        self.users |= users
        self.changes += 1
        self.log += [DecisionChange("default", user) for user in users]

    def erase(self, user: str) -> None:
        self.erased.add(user)
        self.changes += 1
        self.log.append(DecisionChange("default", subject=self.subject_of("default", user)))


class Run(FoldRun):
    """The label job over one partition, with `rules` as its policies."""

    def __init__(self, rules: FixedPolicies | None = None, state: MemoryState | None = None, **limits: Any) -> None:
        self.rules, self.limits = rules or FixedPolicies(), limits
        super().__init__(JOB, None, state or MemoryState())  # type: ignore[arg-type]
        self.restart()

    def restart(self) -> None:
        limits = label_settings(**self.limits)
        self.fold = LabelFold(self.state, FixedSpec(RewardSpec()), self.codec, self.rules, limits)  # type: ignore[arg-type]

    def labels(self, *events: tuple[str, Any]) -> list[Any]:
        return [e for t, _, e in self.feed([self.record(topic, event) for topic, event in events]) if t == LABELS]

    def tick_labels(self) -> list[Any]:
        """Return the labels that 20 ticks at `NOW_MS` publish."""
        labels = []
        for _ in range(20):
            labels += [e for topic, _, e in self.tick(NOW_MS) if topic == LABELS]
        return labels

    def restore(self, label: Any) -> None:
        """Take in a published label, as a state rebuild does before it applies the records."""
        changes = MemoryChanges(self.state)
        self.fold.restore_published(label, changes)
        self.state.write(changes)

    def replay(self, records: list[Record]) -> None:
        """Apply records as a state rebuild does: nothing is published."""
        changes, out = MemoryChanges(self.state), Outputs(JOB, self.codec, lambda call: call())  # type: ignore[arg-type]
        out.replaying = True
        for record in records:
            self.fold.apply(record, self.codec.decode(record.topic, record.value), changes, out)
        self.fold.end_batch(changes, out)
        self.state.write(changes)


def governed(record: Any, version: int = 0, **governance: Any) -> Any:
    source = record["event_id"]
    stamp = {"source_event_id": source, "job": "govern@1", "policy_version": version, "trainable": True} | governance
    origin = (source, version) if version else (source,)
    return {**record, "event_id": derived_id("govern@1", *origin), "governed": new_governance(**stamp)}


def successful_trajectory(name: str, **fields: Any) -> list[tuple[str, Any]]:
    steps = [(STEPS, governed(step)) for step in make_steps(name, 3, **fields)]
    return [*steps, (FEEDBACK, governed(make_ending(name, 3)))]
