"""What `label` keeps of the trajectories of one partition, by a short name of each: its head, steps, demonstrations.

The records of steps, and of feedback with a demonstration, are kept as they came: what is sealed stays sealed. Beside
them stands which trajectories wait for a decision in time, and which were closed on which day.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import cast

from stepstream.crypto.sealing import is_erased
from stepstream.jobs.labels.trajectory_state import TrajectoryState
from stepstream.jobs.runtime.retry import Decoder
from stepstream.jobs.runtime.state import Changes, PartitionState
from stepstream.topics.events import Feedback, Step

STEPS, FEEDBACK = "governed-steps", "governed-feedback"
DAY_MS = 24 * 3600 * 1000

_HEAD, _STEP, _SHOWN, _WAITING, _EXPIRY = b"h", b"s", b"d", b"o", b"x"
_INDEX = struct.Struct(">i")
_DAY = struct.Struct(">I")
_CACHED_STEPS = 500
_CACHED_HEADS = 2_000


class LabelState:
    """The trajectories of one partition; what is changed is written with `Changes`."""

    def __init__(self, state: PartitionState, codec: Decoder) -> None:
        self._state, self._codec = state, codec
        self._heads: dict[bytes, TrajectoryState] = {}
        self._steps: dict[bytes, Step] = {}

    def head(self, name: bytes, trajectory_id: str, changes: Changes) -> TrajectoryState:
        """The head of a trajectory, a new one where none is kept."""
        head = self._heads.get(name)
        if head is None:
            head = self._heads[name] = self.kept(name, changes) or TrajectoryState(trajectory_id)
        return head

    def kept(self, name: bytes, changes: Changes) -> TrajectoryState | None:
        """The head of a trajectory that is kept; it is not held in memory for this."""
        packed = changes.get(_HEAD + name)
        return self._heads.get(name) or (None if packed is None else TrajectoryState.unpack(packed))

    def names(self) -> list[bytes]:
        """Names of all trajectories that are kept."""
        return [name for name, _ in self._state.scan(_HEAD)]

    def put(self, name: bytes, head: TrajectoryState, changes: Changes) -> None:
        """Keeps a head as it is now."""
        changes.put(_HEAD + name, head.pack())

    def step(self, name: bytes, index: int, changes: Changes) -> Step:
        """A step that is kept."""
        key = _step_key(name, index)
        return self._steps.get(key) or cast(Step, self._codec.decode(STEPS, changes.get(key)))

    def steps(self, name: bytes, head: TrajectoryState, changes: Changes) -> list[Step]:
        """The steps of a trajectory, in order."""
        return [self.step(name, index, changes) for index in sorted(map(int, head.steps))]

    def stored_step(self, name: bytes, index: int, changes: Changes) -> bytes | None:
        """The record of a step, as it came."""
        return changes.get(_step_key(name, index))

    def put_step(self, name: bytes, step: Step, record: bytes, changes: Changes) -> None:
        """Keeps a step in place of the one before."""
        key = _step_key(name, step["step_index"])
        changes.put(key, record)
        self._steps[key] = step

    def put_demonstration(self, name: bytes, source_id: str, record: bytes, changes: Changes) -> None:
        """Keeps feedback that demonstrates something, in place of what its source said before."""
        changes.put(_shown_key(name, source_id), record)

    def drop_demonstration(self, name: bytes, source_id: str, changes: Changes) -> None:
        """Forgets what a source demonstrated."""
        changes.delete(_shown_key(name, source_id))

    def demonstrations(self, name: bytes, source_ids: Iterable[str], changes: Changes) -> list[Feedback]:
        """The feedback of these sources, which was kept for what it demonstrates; not that of who was erased."""
        records = (changes.get(_shown_key(name, source_id)) for source_id in source_ids)
        decoded = (self._codec.decode(FEEDBACK, record) for record in records)
        return [cast(Feedback, feedback) for feedback in decoded if not is_erased(feedback)]

    def drop_content(self, name: bytes, head: TrajectoryState, changes: Changes) -> None:
        """Forgets the steps of a trajectory, and what was demonstrated."""
        for index in map(int, head.steps):
            key = _step_key(name, index)
            changes.delete(key)
            self._steps.pop(key, None)
        for source_id, entry in head.feedback.items():
            if entry["demonstrates"]:
                self.drop_demonstration(name, source_id, changes)

    def release_steps(self, name: bytes, head: TrajectoryState) -> None:
        """Holds the steps of a trajectory in memory no longer."""
        for index in map(int, head.steps):
            self._steps.pop(_step_key(name, index), None)

    def trim(self) -> None:
        """Lets go of what memory holds too much of; at the end of a batch, when all is written."""
        if len(self._heads) > _CACHED_HEADS:
            self._heads.clear()
        if len(self._steps) > _CACHED_STEPS:
            self._steps.clear()

    def wait(self, name: bytes, changes: Changes) -> None:
        """Notes that a decision in time is to be taken about a trajectory."""
        changes.put(_WAITING + name, b"")

    def settled(self, name: bytes, changes: Changes) -> None:
        """Notes that none is to be taken any more."""
        changes.delete(_WAITING + name)

    def waiting(self) -> Iterator[tuple[bytes, TrajectoryState]]:
        """Trajectories about which a decision is to be taken, as written."""
        for name, _ in self._state.scan(_WAITING):
            head = self.waiting_for(name)
            if head is not None:
                yield name, head

    def waiting_for(self, name: bytes) -> TrajectoryState | None:
        """The head of one of them, as written; None where nothing is to be decided."""
        packed = self._state.get(_HEAD + name)
        if packed is None or self._state.get(_WAITING + name) is None:
            return None
        return TrajectoryState.unpack(packed)

    def expires(self, day: int, name: bytes, changes: Changes) -> None:
        """Notes the day from which the time to keep a trajectory counts."""
        changes.put(_EXPIRY + _DAY.pack(day) + name, b"")

    def forget_before(self, day: int, changes: Changes) -> None:
        """Drops the trajectories whose day is before this one."""
        for entry, _ in self._state.scan(_EXPIRY):
            if _DAY.unpack_from(entry)[0] >= day:
                break
            name = entry[_DAY.size :]
            self.drop_content(name, self.head(name, "", changes), changes)
            for key in (_EXPIRY + entry, _HEAD + name, _WAITING + name):
                changes.delete(key)
            del self._heads[name]


def name_of(identity: str) -> bytes:
    """A short name of fixed length for a trajectory, or an event."""
    return hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _step_key(name: bytes, index: int) -> bytes:
    return _STEP + name + _INDEX.pack(index)


def _shown_key(name: bytes, source_id: str) -> bytes:
    return _SHOWN + name + name_of(source_id)
