"""What `label` remembers of one trajectory between events. Pure; what it knows depends on the set of events alone.

Steps, feedback and decisions come in any order and more than once. Everything that is decided here (which event is a
step, is the trajectory closed, by what, what is its identity) is a function of which events came, never of their
order, so that state can be rebuilt by reading the input topics one after the other. Whose it is goes by the order of
one topic, which is the same in each replay: it belongs to the tenant of the step that stands first on the log.

Events as `label` remembers them: what they were governed from, and feedback as the reward needs it. Pure.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import orjson

from stepstream.jobs.runtime.record import RecordOrigin
from stepstream.topics.events import Curation, Feedback, Step, TrajectoryClosed, TrajectoryEnd
from stepstream.topics.ids import derived_id

_SINCE = {"arrived": 0, "producer": None, "demonstrates": False, "tenant": None, "call": None}
"""What states of earlier releases do not know of feedback."""


def source_of(event: Step | Feedback) -> str:
    """The id of the event that was governed."""
    return origin_of(event)[0]


def origin_of(event: Step | Feedback) -> tuple[str, int, str]:
    """The source event, and the policy and job by which it was governed."""
    governed = event["governed"]
    if governed is None:
        return event["event_id"], 0, ""
    return governed["source_event_id"], governed["policy_version"], governed["job"]


def signal_of(feedback: Feedback, first_ms: int) -> dict[str, Any]:
    """Feedback as a signal (`rewards/evidence.py`), which came first at `first_ms`, the log's time."""
    source, version, job = origin_of(feedback)
    return {
        "id": feedback["event_id"],
        "source_id": source,
        "version": version,
        "job": job,
        "tenant": feedback["tenant"],
        "name": feedback["name"],
        "value": feedback["value"],
        "step": feedback["step_index"],
        "call": feedback["tool_call_id"],
        "source": feedback["source"],
        "producer": feedback["producer"],
        "at": feedback["occurred_at_us"],
        "retracts": feedback["retracts"],
        "consent": feedback["consent"],
        "arrived": first_ms,
        "demonstrates": bool(feedback["demonstration"]),
    }


def complete(signal: dict[str, Any]) -> None:
    """Adds what a signal of an earlier release lacks."""
    signal |= {name: value for name, value in _SINCE.items() if name not in signal}


Noted = Literal["taken", "known", "older", "retried", "conflict", "foreign"]
"""What became of a step: it counts now; it is known; it is an older result for the source that counts; it is a failed
attempt at a step of which another counts; two sources claim one index and this one does not count; or it names another
tenant than the trajectory's."""

NO_STEP = -1


@dataclass
class TrajectoryState:
    """The summary of one trajectory; its steps are kept beside it."""

    trajectory_id: str
    owner: str | None = None
    """Tenant of its first step on the log; None: none came."""
    steps: dict[str, list[Any]] = field(default_factory=dict)
    """The event that counts of each step, by index as text: [event_id, source_event_id, policy_version, job, whether
    it failed, offset, ids of the tool calls that it made]."""
    ends: dict[str, list[Any]] = field(default_factory=dict)
    """Who told the end: event_id -> [end, last step index or -1]."""
    feedback: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Feedback by event_id of its source, as the reward needs it."""
    early: dict[str, list[Any]] = field(default_factory=dict)
    """Where feedback stands that came before the first step, by event_id of its source: [offset, log time, bytes of
    its value, their SHA-256]."""
    closure: list[Any] | None = None
    """The decision that it is over: [event_id, reason, occurred_at_us]."""
    given_up: dict[str, list[Any]] = field(default_factory=dict)
    """Decisions to wait for a reward component no longer, by its name: [occurred_at_us, event_id]."""
    newest_us: int = 0
    """Newest occurred_at_us of its steps and ends."""
    arrived_ms: int = 0
    """Log time of its newest event."""
    end_arrived_ms: int = 0
    """Log time at which its end was first told; 0: not told."""
    first: list[Any] = field(default_factory=list)
    """Its lowest step: [index, tenant, agent, occurred_at_us, environment]; empty: none came."""
    users: list[str] = field(default_factory=list)
    """Everybody whom its steps name."""
    holds: dict[str, list[Any]] = field(default_factory=dict)
    """Newest decision to hold it, by reason: [occurred_at_us, event_id]."""
    released: list[Any] = field(default_factory=list)
    """Newest decision to let it in: [occurred_at_us, event_id]; empty: none."""
    erased: bool = False
    """Somebody in it was erased: nothing more is taken in."""
    kept_day: int = -1
    """Day from which its time to be kept counts; -1: it is open."""
    revision: int = 0
    """Last revision published; 0: none."""
    label_id: str = ""
    """event_id of that revision."""

    def pack(self) -> bytes:
        """As bytes for the store."""
        return orjson.dumps(asdict(self))

    @staticmethod
    def unpack(packed: bytes) -> "TrajectoryState":
        """The reverse of `pack`."""
        head = TrajectoryState(**orjson.loads(packed))
        # States of earlier releases know neither the environment, nor of feedback when it came, who wrote it, and
        # whether it demonstrates a response.
        head.first += [""] * (bool(head.first) and len(head.first) < 5)
        if head.first and head.owner is None:
            head.owner = head.first[1]
        for entry in head.feedback.values():
            complete(entry)
        for known in head.steps.values():
            known += [[]] * (7 - len(known))
        return head

    def add_step(self, step: Step, offset: int, arrived_ms: int) -> tuple[Noted, list[Any] | None]:
        """Notes a step; also gives the entry that it takes the place of.

        Of several results for one source event the one under the highest policy counts. Of several sources for one
        index one that did not fail counts, then the one with the smallest id: the earliest, where ids rise with time.
        """
        if self.foreign(step["tenant"]):
            return "foreign", None
        self.owner = step["tenant"]
        index = str(step["step_index"])
        source, version, job = origin_of(step)
        calls = [call["call_id"] for call in step["response"]["tool_calls"]]
        entry = [step["event_id"], source, version, job, step["error"] is not None, offset, calls]
        known = self.steps.get(index)
        self._whose(step)
        self._arrived(step["occurred_at_us"], arrived_ms)
        if known is not None:
            if known[0] == entry[0]:
                return "known", None
            if known[1] == source and _version(known) > _version(entry):
                return "older", None
            if known[1] != source and (known[4], known[1]) < (entry[4], source):
                return ("retried" if entry[4] else "conflict"), None
            self.ends.pop(known[0], None)
        self.steps[index] = entry
        if step["end"] != "open":
            self._ended(step["event_id"], step["end"], step["step_index"], arrived_ms)
        return "taken", known

    def foreign(self, tenant: str) -> bool:
        """Whether an event of a tenant is about somebody else's trajectory, which it must not reach."""
        return self.owner is not None and tenant != self.owner

    def came_early(self, feedback: Feedback, origin: RecordOrigin) -> None:
        """Notes where feedback stands that was taken before the first step, in case it has to be refused."""
        place = [origin.offset, origin.timestamp_ms, origin.value_bytes, origin.value_sha256]
        self.early[origin_of(feedback)[0]] = place

    def disown(self) -> dict[str, list[Any] | None]:
        """Once the first step came: forgets feedback of other tenants that came before it.

        Returns:
            Where it stands, as in `early`, by event_id of its source; None where that was not noted.
        """
        strangers = [
            source
            for source, entry in self.feedback.items()
            if entry["tenant"] is not None and self.foreign(entry["tenant"])
        ]
        if strangers:
            for source in strangers:
                self.ends.pop(self.feedback.pop(source)["id"], None)
            told = [entry for entry in self.feedback.values() if entry["id"] in self.ends]
            self.end_arrived_ms = min((max(1, entry["arrived"]) for entry in told), default=0)
            self.newest_us = max((entry["at"] for entry in told), default=0)
        places = {source: self.early.get(source) for source in strangers}
        self.early = {}
        return places

    def add_feedback(self, feedback: Feedback, arrived_ms: int) -> bool:
        """Notes feedback, which is not `foreign`; False where it is known, or an older result for its source."""
        source, version, job = origin_of(feedback)
        known = self.feedback.get(source)
        if known is not None:
            if (known["version"], known["job"], known["id"]) >= (version, job, feedback["event_id"]):
                return False
            self.ends.pop(known["id"], None)
        first_ms = arrived_ms if known is None else min(known["arrived"], arrived_ms)
        self.feedback[source] = signal_of(feedback, first_ms)
        self._arrived(0, arrived_ms)
        if feedback["end"] != "open":
            last = feedback["last_step_index"]
            self.newest_us = max(self.newest_us, feedback["occurred_at_us"])
            self._ended(feedback["event_id"], feedback["end"], -1 if last is None else last, arrived_ms)
        return True

    def close(self, closed: TrajectoryClosed) -> None:
        """Notes the decision that it is over, or that components are waited for no longer; of one kind the first."""
        if closed["components"]:
            given_up = [closed["occurred_at_us"], closed["event_id"]]
            for name in closed["components"]:
                self.given_up[name] = min(self.given_up.get(name, given_up), given_up)
            return
        decision = [closed["event_id"], closed["reason"], closed["occurred_at_us"]]
        if self.closure is None or decision < self.closure:
            self.closure = decision

    def curate(self, curation: Curation, arrived_ms: int) -> None:
        """Notes a decision to hold it or to let it in; the newest of a kind counts."""
        decision = [curation["occurred_at_us"], curation["event_id"]]
        if curation["action"] == "release":
            self.released = max(self.released, decision)
        else:
            self.holds[curation["reason"]] = max(self.holds.get(curation["reason"], []), decision)
        self._arrived(0, arrived_ms)

    def erase(self) -> None:
        """Forgets whose it was and what was told about it; what remains is what a label without content needs."""
        self.erased = True
        self.users = []
        self.holds, self.released, self.given_up = {}, [], {}

    @property
    def signals(self) -> list[dict[str, Any]]:
        """All feedback, each with the step that it is about: of a tool call the latest step that made it.

        One about a call that no step made has `step` `NO_STEP`: it is about a part of the trajectory, never about all.
        """
        return [
            {**entry, "step": self._caller(entry["call"])}
            if entry["call"] is not None and entry["step"] is None
            else entry
            for entry in self.feedback.values()
        ]

    @property
    def held(self) -> list[str]:
        """Reasons for which it is held, decided after the newest release."""
        return sorted(reason for reason, decision in self.holds.items() if decision > self.released)

    @property
    def last_step_index(self) -> int:
        """Index of the last step: as told, or the highest seen if that is higher; -1: none."""
        told = max((last for _, last in self.ends.values()), default=-1)
        return max(told, max(map(int, self.steps), default=-1))

    @property
    def complete(self) -> bool:
        """Whether every step from 0 to the last is there."""
        return len(self.steps) == self.last_step_index + 1 > 0

    @property
    def closed(self) -> bool:
        """Whether it is over and has something to label."""
        return bool(self.steps) and (self.closure is not None or (bool(self.ends) and self.complete))

    @property
    def closed_by(self) -> str:
        """What closed it."""
        return "end" if self.closure is None else str(self.closure[1])

    @property
    def end(self) -> TrajectoryEnd:
        """How it ended; where several told, `terminated` wins: the task's own word."""
        told = {end for end, _ in self.ends.values()}
        return "terminated" if "terminated" in told else "truncated" if told else "open"

    @property
    def closed_ms(self) -> int:
        """Log time at which it was closed: of the decision, or at which its end was told."""
        return self.end_arrived_ms if self.closure is None else int(self.closure[2]) // 1000

    def deadline_ms(self, idle_ms: int, grace_ms: int) -> tuple[int, str]:
        """When it is to be closed without an end or with steps missing, and for what reason."""
        idle = self.arrived_ms + idle_ms
        if self.end_arrived_ms:
            return min(idle, self.end_arrived_ms + grace_ms), "incomplete"
        return idle, "idle"

    def inputs_digest(self, spec: str, signals: Sequence[Mapping[str, Any]], rules: Mapping[str, Any]) -> str:
        """Names what a label would be made from: the same inputs give the same label.

        Args:
            spec: identity of the reward specification, with its version.
            signals: feedback that the reward uses.
            rules: what else bears on it, where it is not the ordinary case: consent, policy, decisions.
        """
        steps = sorted((index, entry[0]) for index, entry in self.steps.items())
        inputs: list[Any] = [spec, steps, [s["id"] for s in signals], sorted(self.ends), self.closure]
        if rules:
            inputs.append(rules)
        return hashlib.blake2b(orjson.dumps(inputs, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()

    def label_event_id(self, job: str, revision: int, digest: str) -> str:
        """Identity of a label."""
        return derived_id(job, self.trajectory_id, revision, digest)

    def _caller(self, call_id: str) -> int:
        return max((int(index) for index, entry in self.steps.items() if call_id in entry[6]), default=NO_STEP)

    def _whose(self, step: Step) -> None:
        first = [step["step_index"], step["tenant"], step["agent"], step["occurred_at_us"], step["environment"]]
        self.first = min(self.first, first) if self.first else first
        if step["user"] is not None and step["user"] not in self.users:
            self.users = sorted([*self.users, step["user"]])

    def _arrived(self, occurred_us: int, arrived_ms: int) -> None:
        self.newest_us = max(self.newest_us, occurred_us)
        self.arrived_ms = max(self.arrived_ms, arrived_ms)

    def _ended(self, event_id: str, end: TrajectoryEnd, last: int, arrived_ms: int) -> None:
        self.ends[event_id] = [end, last]
        earliest = min(self.end_arrived_ms or arrived_ms, arrived_ms)
        self.end_arrived_ms = max(1, earliest)


def _version(entry: list[Any]) -> tuple[int, str, str]:
    return entry[2], entry[3], entry[0]
