"""Save trajectories of one partition, each as a head of constant size and one entry for each step and feedback.

A batch writes the head and the entries that it changed, so the cost of a trajectory is linear in its length. A head of
an earlier release holds all entries; it is divided when it is written next.
"""

import hashlib
import struct

import orjson

from stepstream.jobs.labels.saved_head import pack_head, unpack_head
from stepstream.jobs.labels.trajectory_state import TrajectoryState
from stepstream.jobs.runtime.state import Changes, PartitionState

HEADS = b"h"
"""Prefix of the keys of heads; the name of the trajectory follows."""
_STEP_ENTRY, _FEEDBACK_ENTRY, _SLOT = b"e", b"f", b"g"
_NUMBER = struct.Struct(">I")
_ENTRIES_IN_MEMORY = 200
"""Entries of a trajectory that stay loaded after it was written."""


class TrajectoryStore:
    """Heads and entries. `at` is the state as last written, or with the changes of a batch."""

    def head(self, name: bytes, at: PartitionState | Changes) -> TrajectoryState | None:
        """Return a trajectory without its entries; None: it is not saved."""
        packed = at.get(HEADS + name)
        return None if packed is None else unpack_head(packed)

    def load_step(self, name: bytes, trajectory: TrajectoryState, index: int, at: PartitionState | Changes) -> None:
        """Load the entry of a step, if there is one."""
        if index in trajectory.indices and index not in trajectory.steps:
            packed = at.get(_step_key(name, index))
            assert packed is not None
            trajectory.steps[index] = orjson.loads(packed)

    def load_feedback(
        self, name: bytes, trajectory: TrajectoryState, source: str, at: PartitionState | Changes
    ) -> None:
        """Load the entry of the feedback of a source event, if there is one."""
        if source not in trajectory.feedback and trajectory.feedback_slots:
            slot = at.get(_slot_key(name, source))
            if slot is not None:
                self._load_slot(name, trajectory, _NUMBER.unpack(slot)[0], at)

    def load_all(self, name: bytes, trajectory: TrajectoryState, at: PartitionState | Changes) -> None:
        """Load all entries."""
        if len(trajectory.steps) < len(trajectory.indices):
            for index in trajectory.indices:
                self.load_step(name, trajectory, index, at)
        if len(trajectory.feedback) < trajectory.feedback_count:
            loaded = {entry["slot"] for entry in trajectory.feedback.values()}
            for slot in range(trajectory.feedback_slots):
                if slot not in loaded:
                    self._load_slot(name, trajectory, slot, at)

    def put(self, name: bytes, trajectory: TrajectoryState, changes: Changes) -> None:
        """Save a trajectory."""
        for index in trajectory.changed_steps:
            changes.put(_step_key(name, index), orjson.dumps(trajectory.steps[index]))
        for source in trajectory.changed_feedback:
            entry = trajectory.feedback[source]
            changes.put(_feedback_key(name, entry["slot"]), orjson.dumps(entry))
            changes.put(_slot_key(name, source), _NUMBER.pack(entry["slot"]))
        for source, slot in trajectory.removed_feedback.items():
            changes.delete(_feedback_key(name, slot))
            changes.delete(_slot_key(name, source))
        changes.put(HEADS + name, pack_head(trajectory))
        trajectory.mark_saved()
        if len(trajectory.steps) + len(trajectory.feedback) > _ENTRIES_IN_MEMORY:
            trajectory.release_entries()

    def delete(self, name: bytes, trajectory: TrajectoryState, changes: Changes) -> None:
        """Delete a trajectory."""
        self.load_all(name, trajectory, changes)
        for index in trajectory.indices:
            changes.delete(_step_key(name, index))
        for source, entry in trajectory.feedback.items():
            changes.delete(_feedback_key(name, entry["slot"]))
            changes.delete(_slot_key(name, source))
        changes.delete(HEADS + name)

    def _load_slot(self, name: bytes, trajectory: TrajectoryState, slot: int, at: PartitionState | Changes) -> None:
        packed = at.get(_feedback_key(name, slot))
        if packed is not None:  # else removed
            entry = orjson.loads(packed)
            trajectory.feedback.setdefault(entry["source_id"], entry)


def name_of(identity: str) -> bytes:
    """Return a name of fixed length for the id of an event, or of a trajectory in earlier releases."""
    return hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _step_key(name: bytes, index: int) -> bytes:
    return _STEP_ENTRY + name + _NUMBER.pack(index)


def _feedback_key(name: bytes, slot: int) -> bytes:
    return _FEEDBACK_ENTRY + name + _NUMBER.pack(slot)


def _slot_key(name: bytes, source: str) -> bytes:
    return _SLOT + name + name_of(source)
