"""State of one trajectory: its steps, feedback, ends and decisions. Pure.

The head (`saved_head.py`) has everything of constant size. Steps and feedback have an entry each, which
`trajectory_store.py` saves and loads one by one. `steps` and `feedback` hold the loaded entries.

Events come in any order and more than once. All that is derived from them (step at an index, closure, label) depends on
their set and not on their order, but for `opened_us`. So one topic after the other can be read to rebuild state.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from stepstream.jobs.labels.feedback_signal import origin_of, signal_of, superseded_by
from stepstream.jobs.runtime.index_set import IndexSet
from stepstream.jobs.runtime.record import RecordOrigin
from stepstream.topics.events import Curation, Feedback, Step, TrajectoryClosed, TrajectoryEnd
from stepstream.topics.ids import DEFAULT_TENANT, derived_id
from stepstream.topics.label_precedence import label_precedence

StepOutcome = Literal["taken", "known", "older", "retried", "conflict"]
"""Result of `add_step`: `taken`, it is the step now; `known`, a duplicate; `older`, an older result of the same source;
`retried`, a failed attempt beside a successful one; `conflict`, another source has the index."""

NO_STEP = -1


@dataclass
class TrajectoryState:
    """Everything known of one trajectory, except the content of its steps."""

    trajectory_id: str
    owner: str | None = None
    """Its tenant; None: only decisions of earlier releases came, which name none, and no step yet."""
    indices: IndexSet = field(default_factory=IndexSet)
    """Indices of all its steps."""
    steps: dict[int, list[Any]] = field(default_factory=dict)
    """Loaded entries of steps, by index. An entry is the event that is the step: [event_id, source_event_id,
    policy_version, job, failed, offset, ids of the tool calls that it made].
    """
    changed_steps: set[int] = field(default_factory=set)
    """Indices of the entries that are not saved yet."""
    ends: dict[str, list[Any]] = field(default_factory=dict)
    """Events that end the trajectory, by event_id: [end, last step index or -1]."""
    feedback: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Loaded entries of feedback, by event_id of its source. An entry is a signal (`signal_of`) with its `slot`. Of
    feedback that came before the first step, it has the position as `early`: [offset, log time, bytes of its value,
    their SHA-256].
    """
    feedback_slots: int = 0
    """Number of slots for entries of feedback, numbered from 0."""
    feedback_count: int = 0
    """Number of entries of feedback."""
    changed_feedback: set[str] = field(default_factory=set)
    """Sources of the entries that are not saved yet."""
    removed_feedback: dict[str, int] = field(default_factory=dict)
    """Slots of entries to delete, by source."""
    closures: list[list[Any]] = field(default_factory=list)
    """Decisions to close: [event_id, reason, occurred_at_us, highest step index, number of steps or None], without
    those that a later step has made obsolete.
    """
    given_up: dict[str, list[Any]] = field(default_factory=dict)
    """Decisions to stop waiting for a reward component, by its name: [occurred_at_us, event_id]."""
    newest_us: int = 0
    """Newest occurred_at_us of the steps and ends."""
    arrived_ms: int = 0
    """Log time of the newest event."""
    step_arrived_ms: int = 0
    """Log time of the newest step."""
    end_arrived_ms: int = 0
    """Log time of the first end; 0: none."""
    first: list[Any] = field(default_factory=list)
    """Step with the lowest index: [index, tenant, agent, occurred_at_us, environment]; empty: no step yet."""
    users: list[str] = field(default_factory=list)
    """All users that the steps name, sorted."""
    holds: dict[str, list[Any]] = field(default_factory=dict)
    """Newest decision to hold, by reason: [occurred_at_us, event_id]."""
    released: list[Any] = field(default_factory=list)
    """Newest decision to release: [occurred_at_us, event_id]; empty: none."""
    erased: bool = False
    """True once a user of the trajectory was erased: further events are ignored."""
    kept_day: int = -1
    """Day from which the retention period counts; -1: open."""
    is_saved: bool = False
    """True once it is counted as an entry of the state."""
    orphan_ms: int = 0
    """Log time by which it is listed as a trajectory without steps; 0: it is not."""
    revision: int = 0
    """Last revision published; 0: none."""
    label_id: str = ""
    """event_id of that revision."""
    opened_us: int = 0
    """`opened_at_us` of its labels: the first step's on the log; 0: none came, or an earlier release wrote it."""
    withdrawn: bool = False
    """True if that revision withdraws the label until the next closure, because later steps have come."""

    def mark_saved(self) -> None:
        """Record that all entries are saved."""
        self.changed_steps.clear()
        self.changed_feedback.clear()
        self.removed_feedback.clear()

    def release_entries(self) -> None:
        """Forget the loaded entries, which must be saved."""
        self.steps.clear()
        self.feedback.clear()

    def add_step(self, step: Step, offset: int, arrived_ms: int) -> tuple[StepOutcome, list[Any] | None]:
        """Add a step; return its outcome and the entry that it replaces. Its entry must be loaded if there is one.

        Of several results of one source event, the one under the highest policy version is the step. Of several sources
        for one index: one that supersedes the other, else one without error, else the smallest (earliest) source id.
        """
        source, version, job = origin_of(step)
        calls = [call["call_id"] for call in step["response"]["tool_calls"]]
        entry = [step["event_id"], source, version, job, step["error"] is not None, offset, calls]
        known = self.steps.get(index := step["step_index"])
        if not (self.opened_us or self.indices or self.revision):
            self.opened_us = step["occurred_at_us"]
        self._update_owner(step)
        self._update_times(step["occurred_at_us"], arrived_ms)
        self.step_arrived_ms = max(self.step_arrived_ms, arrived_ms)
        if known is not None:
            if known[0] == entry[0]:
                return "known", None
            if known[1] == source and _version(known) > _version(entry):
                return "older", None
            if known[1] != source and known[1] != superseded_by(step) and (known[4], known[1]) < (entry[4], source):
                return ("retried" if entry[4] else "conflict"), None
            self.ends.pop(known[0], None)
        self.steps[index] = entry
        self.changed_steps.add(index)
        self.indices.add(index)
        if known is None:
            self.closures = [closure for closure in self.closures if not self._is_obsolete(closure)]
        if step["end"] != "open":
            self._add_end(step["event_id"], step["end"], step["step_index"], arrived_ms)
        return "taken", known

    def add_early_feedback(self, feedback: Feedback, origin: RecordOrigin) -> None:
        """Record the position of added feedback that came before the first step, for a dead letter if none comes."""
        position = [origin.offset, origin.timestamp_ms, origin.value_bytes, origin.value_sha256]
        self.feedback[origin_of(feedback)[0]]["early"] = position

    def add_feedback(self, feedback: Feedback, arrived_ms: int) -> bool:
        """Add feedback; return False if it is a duplicate or an older result of its source.

        The entry of its source must be loaded if there is one.
        """
        source, version, job = origin_of(feedback)
        known = self.feedback.get(source)
        if known is not None:
            if _result(known) >= (version, job, feedback["event_id"]):
                return False
            self.ends.pop(known["id"], None)
        first_ms = arrived_ms if known is None else min(known["arrived"], arrived_ms)
        slot = self.feedback_slots if known is None else known["slot"]
        self.feedback[source] = signal_of(feedback, first_ms) | {"slot": slot}
        self.changed_feedback.add(source)
        if known is None:
            self.feedback_slots += 1
            self.feedback_count += 1
        self._update_times(0, arrived_ms)
        if feedback["end"] != "open":
            last = feedback["last_step_index"]
            self.newest_us = max(self.newest_us, feedback["occurred_at_us"])
            self._add_end(feedback["event_id"], feedback["end"], -1 if last is None else last, arrived_ms)
        return True

    def take_decisions(self, unowned: "TrajectoryState") -> None:
        """Add the decisions about a trajectory without owner, and its label, to this one."""
        closures = [one for one in unowned.closures if one not in self.closures and not self._is_obsolete(one)]
        self.closures += closures
        for name, given_up in unowned.given_up.items():
            self.given_up[name] = min(self.given_up.get(name, given_up), given_up)
        for reason, decision in unowned.holds.items():
            self.holds[reason] = max(self.holds.get(reason, []), decision)
        self.released = max(self.released, unowned.released)
        known = label_precedence(self.revision, self.label_id)
        if label_precedence(unowned.revision, unowned.label_id) > known:
            self.revision, self.label_id, self.withdrawn = unowned.revision, unowned.label_id, unowned.withdrawn
        self.opened_us = self.opened_us or unowned.opened_us
        self._update_times(0, unowned.arrived_ms)

    def take_feedback(self, source: str, entry: dict[str, Any], end: list[Any] | None) -> None:
        """Add an entry of feedback of another trajectory, unless a newer result of its source is known.

        All entries must be loaded. `end` is the end that it reported, as in `ends`.
        """
        known = self.feedback.get(source)
        if known is not None and _result(known) >= _result(entry):
            return
        if known is None:
            self.feedback_slots += 1
            self.feedback_count += 1
        else:
            self.ends.pop(known["id"], None)
        slot = self.feedback_slots - 1 if known is None else known["slot"]
        self.feedback[source] = entry | {"slot": slot}
        self.changed_feedback.add(source)
        self._update_times(0, entry["arrived"])
        if end is not None:
            self.newest_us = max(self.newest_us, entry["at"])
            self._add_end(entry["id"], end[0], end[1], entry["arrived"])

    def close(self, closed: TrajectoryClosed) -> None:
        """Add a decision to close, or to stop waiting for components, of which the earliest counts."""
        if closed["components"]:
            given_up = [closed["occurred_at_us"], closed["event_id"]]
            for name in closed["components"]:
                self.given_up[name] = min(self.given_up.get(name, given_up), given_up)
            return
        seen = closed["last_step_index"], closed["steps"]
        decision = [closed["event_id"], closed["reason"], closed["occurred_at_us"], *seen]
        if decision not in self.closures and not self._is_obsolete(decision):
            self.closures.append(decision)

    def curate(self, curation: Curation, arrived_ms: int) -> None:
        """Add a decision to hold or to release; the newest of each kind counts."""
        decision = [curation["occurred_at_us"], curation["event_id"]]
        if curation["action"] == "release":
            self.released = max(self.released, decision)
        else:
            self.holds[curation["reason"]] = max(self.holds.get(curation["reason"], []), decision)
        self._update_times(0, arrived_ms)

    def erase(self) -> None:
        """Remove users and decisions; the rest is needed for a label without content."""
        self.erased = True
        self.users, self.holds, self.released, self.given_up = [], {}, [], {}

    @property
    def signals(self) -> list[dict[str, Any]]:
        """All feedback. Feedback about a tool call gets the index of the latest step that made the call.

        `NO_STEP`: no step made the call. Such feedback counts neither for a step nor for the whole trajectory. All
        entries must be loaded.
        """
        calling = {call: index for index in self.indices for call in self.steps[index][6]}
        return [
            {**entry, "step": calling.get(entry["call"], NO_STEP)}
            if entry["call"] is not None and entry["step"] is None
            else entry
            for entry in self.feedback.values()
        ]

    @property
    def tenant(self) -> str:
        """Tenant of its derived ids."""
        return DEFAULT_TENANT if self.owner is None else self.owner

    @property
    def agent(self) -> str:
        """Agent of the first step; there must be one."""
        return str(self.first[2])

    @property
    def environment(self) -> str:
        """Environment of the first step; there must be one."""
        return str(self.first[4])

    @property
    def hold_reasons(self) -> list[str]:
        """Reasons of the holds that are newer than the newest release, sorted."""
        return sorted(reason for reason, decision in self.holds.items() if decision > self.released)

    @property
    def highest_step(self) -> int:
        """Highest index of a step; -1: none."""
        return self.indices.highest

    @property
    def reported_last_step(self) -> int:
        """Highest index that an end names as the last step; -1: none."""
        return max((last for _, last in self.ends.values()), default=-1)

    @property
    def last_step_index(self) -> int:
        """Highest index of an end or of a step; -1: none."""
        return max(self.reported_last_step, self.highest_step)

    @property
    def is_complete(self) -> bool:
        """True if every step from 0 to the last has come."""
        return len(self.indices) == self.last_step_index + 1 > 0

    @property
    def closure(self) -> list[Any] | None:
        """The decision that closes it with the steps known now: [event_id, reason, occurred_at_us]; None: none does.

        A decision names the steps that it saw by their number and highest index. Steps are only ever added, so equal
        figures mean the same steps.
        """
        known = len(self.indices), self.highest_step
        covering = [
            closure[:3]
            for closure in self.closures
            if (closure[4] is None and closure[3] >= known[1]) or (closure[4], closure[3]) == known
        ]
        return min(covering, default=None)

    @property
    def has_ended(self) -> bool:
        """True if an end names the last step, and every step up to it has come and none beyond."""
        return self.reported_last_step == self.highest_step == len(self.indices) - 1 >= 0

    @property
    def is_closed(self) -> bool:
        """True if it has at least one step, and has ended or is closed by a decision about the steps known now."""
        return len(self.indices) > 0 and (self.has_ended or self.closure is not None)

    @property
    def is_settled(self) -> bool:
        """True if it waits for no closure: it is closed or erased, or was given up because no step came."""
        return self.is_closed or self.erased or self.closure is not None

    @property
    def closed_by(self) -> str:
        """Reason of the closure; `end`: the agent ended it; `reopened`: it is open."""
        closure = self.closure
        return str(closure[1]) if closure is not None else "end" if self.has_ended else "reopened"

    @property
    def end(self) -> TrajectoryEnd:
        """How it ended. `terminated` wins over `truncated`: the task itself ended."""
        ends = {end for end, _ in self.ends.values()}
        return "terminated" if "terminated" in ends else "truncated" if ends else "open"

    @property
    def closed_ms(self) -> int:
        """Log time of the closure, or of the end; of the newest event if it is open."""
        closure = self.closure
        if closure is not None:
            return int(closure[2]) // 1000
        return self.end_arrived_ms if self.has_ended else self.arrived_ms

    def deadline_ms(self, idle_ms: int, grace_ms: int) -> tuple[int, str]:
        """Return the log time at which an open trajectory is closed, and the reason.

        A reported end shortens the wait to the grace. A step after the grace shows that more may come.
        """
        idle, grace = self.arrived_ms + idle_ms, self.end_arrived_ms + grace_ms
        if self.end_arrived_ms and self.step_arrived_ms <= grace:
            return min(idle, grace), "ended" if self.is_complete else "incomplete"
        return idle, "idle"

    def inputs_digest(self, spec: str, signals: Sequence[Mapping[str, Any]], other_inputs: Mapping[str, Any]) -> str:
        """Return a digest of all inputs of a label: equal inputs give an equal label. All entries must be loaded.

        Args:
            spec: identity and version of the reward specification.
            signals: feedback that the reward uses.
            other_inputs: further inputs that differ from the default: consent, policy, curation.
        """
        steps = sorted((str(index), entry[0]) for index, entry in self.steps.items())
        inputs: list[Any] = [spec, steps, [s["id"] for s in signals], sorted(self.ends), self.closure]
        if other_inputs:
            inputs.append(other_inputs)
        return hashlib.blake2b(orjson.dumps(inputs, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()

    def label_event_id(self, job: str, revision: int, digest: str) -> str:
        """Return the event_id of a revision."""
        return derived_id(job, self.trajectory_id, revision, digest, tenant=self.tenant)

    def has_label(self, job: str, digest: str) -> bool:
        """Return True if the last revision is of these inputs."""
        return self.revision > 0 and self.label_id in (
            self.label_event_id(job, self.revision, digest),
            derived_id(job, self.trajectory_id, self.revision, digest),  # of a release without tenants in ids
        )

    def _is_obsolete(self, closure: list[Any]) -> bool:
        """Return True if a step is known that the decision did not see, so that it can never count again."""
        _, _, _, last, count = closure
        return last < self.highest_step or (count is not None and count < len(self.indices))

    def _update_owner(self, step: Step) -> None:
        first = [step["step_index"], step["tenant"], step["agent"], step["occurred_at_us"], step["environment"]]
        self.first = min(self.first, first) if self.first else first
        if step["user"] is not None and step["user"] not in self.users:
            self.users = sorted([*self.users, step["user"]])

    def _update_times(self, occurred_us: int, arrived_ms: int) -> None:
        self.newest_us = max(self.newest_us, occurred_us)
        self.arrived_ms = max(self.arrived_ms, arrived_ms)

    def _add_end(self, event_id: str, end: TrajectoryEnd, last: int, arrived_ms: int) -> None:
        self.ends[event_id] = [end, last]
        self.end_arrived_ms = max(1, min(self.end_arrived_ms or arrived_ms, arrived_ms))


def _result(entry: Mapping[str, Any]) -> tuple[int, str, str]:
    return entry["version"], entry["job"], entry["id"]


def _version(entry: list[Any]) -> tuple[int, str, str]:
    return entry[2], entry[3], entry[0]
