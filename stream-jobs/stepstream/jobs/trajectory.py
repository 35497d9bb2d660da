"""What `label` remembers of one trajectory between events. Pure; what it knows depends on the set of events alone.

Steps and feedback come in any order and more than once. Everything that is decided here (is it closed, by what, what
is its identity) is a function of which events came, never of their order, so that state can be rebuilt by reading
the input topics one after the other.
"""

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from stepstream.topics.events import Feedback, Step, TrajectoryClosed, TrajectoryEnd
from stepstream.topics.ids import derived_id


@dataclass
class Head:
    """The summary of one trajectory; its steps are kept beside it."""

    trajectory_id: str
    steps: dict[str, str] = field(default_factory=dict)
    """event_id of each step, by index as text."""
    ends: dict[str, list[Any]] = field(default_factory=dict)
    """Who told the end: event_id -> [end, last step index or -1]."""
    feedback: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Feedback by event_id, as the reward needs it."""
    closure: list[Any] | None = None
    """The decision that it is over: [event_id, reason, occurred_at_us]."""
    newest_us: int = 0
    """Newest occurred_at_us of its steps and ends."""
    arrived_ms: int = 0
    """Log time of its newest event."""
    end_arrived_ms: int = 0
    """Log time at which its end was first told; 0: not told."""
    revision: int = 0
    """Last revision published; 0: none."""
    label_id: str = ""
    """event_id of that revision."""

    def pack(self) -> bytes:
        """As bytes for the store."""
        return orjson.dumps(asdict(self))

    @staticmethod
    def unpack(packed: bytes) -> "Head":
        """The reverse of `pack`."""
        return Head(**orjson.loads(packed))

    def add_step(self, step: Step, arrived_ms: int) -> bool:
        """Notes a step; False where another step already has this index."""
        index = str(step["step_index"])
        known = self.steps.setdefault(index, step["event_id"])
        if known != step["event_id"]:
            return False
        self._arrived(step["occurred_at_us"], arrived_ms)
        if step["end"] != "open":
            self._ended(step["event_id"], step["end"], step["step_index"], arrived_ms)
        return True

    def add_feedback(self, feedback: Feedback, arrived_ms: int) -> None:
        """Notes feedback."""
        governed = feedback["governed"]
        self.feedback[feedback["event_id"]] = {
            "id": feedback["event_id"],
            "source_id": governed["source_event_id"] if governed is not None else feedback["event_id"],
            "name": feedback["name"],
            "value": feedback["value"],
            "step": feedback["step_index"],
            "source": feedback["source"],
            "at": feedback["occurred_at_us"],
            "retracts": feedback["retracts"],
            "consent": feedback["consent"],
        }
        self._arrived(0, arrived_ms)
        if feedback["end"] != "open":
            last = feedback["last_step_index"]
            self.newest_us = max(self.newest_us, feedback["occurred_at_us"])
            self._ended(feedback["event_id"], feedback["end"], -1 if last is None else last, arrived_ms)

    def close(self, closed: TrajectoryClosed) -> None:
        """Notes the decision that it is over; the first one in the log's order of ids counts."""
        decision = [closed["event_id"], closed["reason"], closed["occurred_at_us"]]
        if self.closure is None or decision < self.closure:
            self.closure = decision

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

    def signals(self) -> list[dict[str, Any]]:
        """Feedback that stands and has a value, in order of time."""
        retracted = {entry["retracts"] for entry in self.feedback.values()} - {None}
        standing = [
            entry
            for entry in self.feedback.values()
            if entry["value"] is not None and not retracted & {entry["id"], entry["source_id"]}
        ]
        return sorted(standing, key=lambda entry: (entry["at"], entry["id"]))

    def deadline_ms(self, idle_ms: int, grace_ms: int) -> tuple[int, str]:
        """When it is to be closed without an end or with steps missing, and for what reason."""
        idle = self.arrived_ms + idle_ms
        if self.end_arrived_ms:
            return min(idle, self.end_arrived_ms + grace_ms), "incomplete"
        return idle, "idle"

    def inputs_digest(self, spec: str, signals: list[dict[str, Any]]) -> str:
        """Names what a label would be made from: the same inputs give the same label."""
        inputs = [spec, sorted(self.steps.items()), [s["id"] for s in signals], sorted(self.ends), self.closure]
        return hashlib.blake2b(orjson.dumps(inputs), digest_size=16).hexdigest()

    def label_event_id(self, job: str, revision: int, digest: str) -> str:
        """Identity of a label."""
        return derived_id(job, self.trajectory_id, revision, digest)

    def _arrived(self, occurred_us: int, arrived_ms: int) -> None:
        self.newest_us = max(self.newest_us, occurred_us)
        self.arrived_ms = max(self.arrived_ms, arrived_ms)

    def _ended(self, event_id: str, end: TrajectoryEnd, last: int, arrived_ms: int) -> None:
        self.ends[event_id] = [end, last]
        earliest = min(self.end_arrived_ms or arrived_ms, arrived_ms)
        self.end_arrived_ms = max(1, earliest)
