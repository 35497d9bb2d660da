"""Save the trajectories of one partition: their `TrajectoryState`, steps and demonstrations.

Each trajectory has a short name, of its tenant and id (`find_trajectory`). `TrajectoryStore` saves its state. Steps,
and feedback with a demonstration, are saved as the encrypted records that came. Two indexes list the trajectories that
wait for a timeout, and those that closed on each day.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, cast

from stepstream.crypto.sealing import is_erased
from stepstream.jobs.labels.find_trajectory import claim_id, find_trajectory, hand_over, release_id
from stepstream.jobs.labels.person_index import add_persons, remove_persons
from stepstream.jobs.labels.trajectory_state import TrajectoryState
from stepstream.jobs.labels.trajectory_store import TrajectoryStore, name_of
from stepstream.jobs.runtime.retry import Decoder
from stepstream.jobs.runtime.state import Changes, PartitionState
from stepstream.jobs.runtime.stored_count import StoredCount
from stepstream.topics.catalogue import GOVERNED_FEEDBACK, GOVERNED_STEPS
from stepstream.topics.events import Feedback, Step

DAY_MS = 24 * 3600 * 1000

_STEP, _DEMONSTRATION, _WAITING, _EXPIRY, _EXPIRIES, _ORPHAN = b"s", b"d", b"o", b"x", b"k", b"n"
_TIME = struct.Struct(">Q")
_INDEX = struct.Struct(">i")
_DAY = struct.Struct(">I")
_CACHED_STEPS = 500
_CACHED_TRAJECTORIES = 2_000


class LabelState:
    """Trajectories of one partition. Changes are written through `Changes`."""

    def __init__(self, state: PartitionState, codec: Decoder) -> None:
        self._state, self._codec = state, codec
        self._store = TrajectoryStore()
        self._trajectories: dict[bytes, TrajectoryState] = {}
        self._steps: dict[bytes, Step] = {}
        self.orphans = sum(1 for _ in state.scan(_ORPHAN))
        """Number of trajectories with feedback and without steps."""
        self._expiries = StoredCount(state, _EXPIRIES, _EXPIRY)

    def find(self, tenant: str | None, trajectory_id: str, changes: Changes) -> tuple[bytes, TrajectoryState]:
        """Return the name and the trajectory of an event, from the cache or the state; a new one if none is saved."""
        name, trajectory = find_trajectory(tenant, trajectory_id, lambda key: self.saved(key, changes), changes)
        self._trajectories[name] = trajectory
        return name, trajectory

    def saved(self, name: bytes, changes: Changes) -> TrajectoryState | None:
        """Return a saved trajectory without caching it; None: none is saved."""
        return self._trajectories.get(name) or self._store.head(name, changes)

    def load_step(self, name: bytes, trajectory: TrajectoryState, index: int, changes: Changes) -> None:
        """Load the entry of a step, if there is one."""
        self._store.load_step(name, trajectory, index, changes)

    def load_feedback(self, name: bytes, trajectory: TrajectoryState, source: str, changes: Changes) -> None:
        """Load the entry of the feedback of a source event, if there is one."""
        self._store.load_feedback(name, trajectory, source, changes)

    def load_all(self, name: bytes, trajectory: TrajectoryState, changes: Changes | None = None) -> None:
        """Load all entries of a trajectory, by default as last written."""
        self._store.load_all(name, trajectory, changes or self._state)

    def put(self, name: bytes, trajectory: TrajectoryState, changes: Changes) -> None:
        """Save a trajectory."""
        self._store.put(name, trajectory, changes)

    def step(self, name: bytes, index: int, changes: Changes) -> Step:
        """Return a saved step, decoded."""
        key = _step_key(name, index)
        return self._steps.get(key) or cast(Step, self._codec.decode(GOVERNED_STEPS, changes.get(key)))

    def steps(self, name: bytes, trajectory: TrajectoryState, changes: Changes) -> list[Step]:
        """Return the steps of a trajectory in order of their index."""
        return [self.step(name, index, changes) for index in trajectory.indices]

    def stored_step(self, name: bytes, index: int, changes: Changes) -> bytes | None:
        """Return the record of a step as it came; None: not saved."""
        return changes.get(_step_key(name, index))

    def put_step(self, name: bytes, step: Step, record: bytes, changes: Changes) -> None:
        """Save a step; it replaces the one with the same index."""
        key = _step_key(name, step["step_index"])
        changes.put(key, record)
        self._steps[key] = step

    def put_demonstration(self, name: bytes, source_id: str, record: bytes, changes: Changes) -> None:
        """Save feedback with a demonstration; it replaces earlier feedback of the same source event."""
        changes.put(_demonstration_key(name, source_id), record)

    def delete_demonstration(self, name: bytes, source_id: str, changes: Changes) -> None:
        """Delete the demonstration of a source event."""
        changes.delete(_demonstration_key(name, source_id))

    def demonstrations(self, name: bytes, source_ids: Iterable[str], changes: Changes) -> list[Feedback]:
        """Return the saved feedback of these source events, without that of erased users."""
        records = (changes.get(_demonstration_key(name, source_id)) for source_id in source_ids)
        decoded = (self._codec.decode(GOVERNED_FEEDBACK, record) for record in records)
        return [cast(Feedback, feedback) for feedback in decoded if not is_erased(feedback)]

    def delete_content(self, name: bytes, trajectory: TrajectoryState, changes: Changes) -> None:
        """Delete the steps and demonstrations of a trajectory."""
        self.load_all(name, trajectory, changes)
        for index in trajectory.indices:
            key = _step_key(name, index)
            changes.delete(key)
            self._steps.pop(key, None)
        for source_id, entry in trajectory.feedback.items():
            if entry["demonstrates"]:
                self.delete_demonstration(name, source_id, changes)

    def release_steps(self, name: bytes, trajectory: TrajectoryState) -> None:
        """Remove the steps of a trajectory from the cache."""
        for index in trajectory.indices:
            self._steps.pop(_step_key(name, index), None)

    def trim(self) -> None:
        """Remove the oldest entries of caches. Call it at the end of a batch, when everything is written."""
        _remove_oldest(self._trajectories, _CACHED_TRAJECTORIES)
        _remove_oldest(self._steps, _CACHED_STEPS)

    def add_waiting(self, name: bytes, changes: Changes) -> None:
        """Record that a trajectory waits for a timeout."""
        changes.put(_WAITING + name, b"")

    def remove_waiting(self, name: bytes, changes: Changes) -> None:
        """Record that a trajectory waits for no timeout."""
        changes.delete(_WAITING + name)

    def waiting(self) -> Iterator[tuple[bytes, TrajectoryState]]:
        """Yield the trajectories that wait for a timeout, as last written."""
        for name, _ in self._state.scan(_WAITING):
            trajectory = self.waiting_trajectory(name)
            if trajectory is not None:
                yield name, trajectory

    def waiting_trajectory(self, name: bytes) -> TrajectoryState | None:
        """Return a waiting trajectory as last written; None: it does not wait."""
        return None if self._state.get(_WAITING + name) is None else self._store.head(name, self._state)

    def add_expiry(self, day: int, name: bytes, changes: Changes) -> None:
        """Record the day from which the retention period of a trajectory counts."""
        changes.put(_EXPIRY + _DAY.pack(day) + name, b"")
        self._expiries.add(1, changes)

    def remove_expiry(self, day: int, name: bytes, changes: Changes) -> None:
        """Remove what `add_expiry` recorded."""
        changes.delete(_EXPIRY + _DAY.pack(day) + name)
        self._expiries.add(-1, changes)

    @property
    def expiring(self) -> int:
        """Number of trajectories whose retention period has begun."""
        return self._expiries.value

    def delete_expired(self, day: int, most: int, limit: int, changes: Changes) -> Counter[str]:
        """Delete trajectories whose retention period has begun, the oldest first, at most `limit`.

        Args:
            day: those whose period began before this day are deleted.
            most: largest number that is left.
            limit: largest number of deletions.
            changes: of the state.

        Returns:
            The numbers of those deleted for their `age` and for the `cap`.
        """
        deleted: Counter[str] = Counter()
        for entry, _ in self._state.scan(_EXPIRY):
            began = _DAY.unpack_from(entry)[0]
            if deleted.total() == limit or (began >= day and self.expiring <= most):
                break
            name = entry[_DAY.size :]
            trajectory = self.saved(name, changes)
            if trajectory is None:
                self.remove_expiry(began, name, changes)
            else:
                self.delete(name, trajectory, changes)
            deleted["age" if began < day else "cap"] += 1
        return deleted

    def hand_over_unowned(
        self, name: bytes, trajectory: TrajectoryState, changes: Changes, *, rebuilding: bool
    ) -> dict[bytes, TrajectoryState]:
        """Give what was collected under its id, without an owner, to a trajectory whose first step comes.

        Returns:
            The trajectories that got something, by name: feedback goes to that of its own tenant.
        """
        unowned = claim_id(name, trajectory, lambda key: self.saved(key, changes), changes, rebuilding=rebuilding)
        if unowned is None or trajectory.owner is None:
            return {}
        by_id = name_of(trajectory.trajectory_id)
        found = {trajectory.owner: (name, trajectory)}

        def of_tenant(tenant: str) -> TrajectoryState:
            if tenant not in found:
                found[tenant] = self.find(tenant, trajectory.trajectory_id, changes)
            self.load_all(*found[tenant], changes)
            return found[tenant][1]

        self.load_all(by_id, unowned, changes)
        hand_over(unowned, trajectory.owner, of_tenant)
        for source, entry in unowned.feedback.items():
            if entry["demonstrates"] and (record := changes.get(_demonstration_key(by_id, source))) is not None:
                self.put_demonstration(found[entry["tenant"] or trajectory.owner][0], source, record, changes)
        self.delete(by_id, unowned, changes)
        return dict(found.values())

    def delete(self, name: bytes, trajectory: TrajectoryState, changes: Changes) -> None:
        """Delete everything about a trajectory."""
        release_id(trajectory, changes)
        self.delete_content(name, trajectory, changes)
        self._store.delete(name, trajectory, changes)
        self.remove_waiting(name, changes)
        self.remove_orphan(name, trajectory, changes)
        self.remove_persons(name, trajectory, changes)
        if trajectory.kept_day >= 0:
            self.remove_expiry(trajectory.kept_day, name, changes)
        self._trajectories.pop(name, None)

    def add_persons(self, name: bytes, trajectory: TrajectoryState, changes: Changes) -> None:
        """List a trajectory under its tenant and persons."""
        if trajectory.owner is not None and trajectory.indices and not trajectory.erased:
            add_persons(name, trajectory.owner, trajectory.users, changes)

    def remove_persons(self, name: bytes, trajectory: TrajectoryState, changes: Changes) -> None:
        """Reverse `add_persons`."""
        if trajectory.owner is not None:
            remove_persons(name, trajectory.owner, trajectory.users, changes)

    def add_orphan(self, name: bytes, trajectory: TrajectoryState, changes: Changes) -> None:
        """List a trajectory with feedback and without steps, by the time of its newest event."""
        trajectory.orphan_ms = max(1, trajectory.arrived_ms)
        changes.put(_ORPHAN + _TIME.pack(trajectory.orphan_ms) + name, b"")
        self.orphans += 1

    def remove_orphan(self, name: bytes, trajectory: TrajectoryState, changes: Changes) -> None:
        """Remove a trajectory from that list, if it is there."""
        if trajectory.orphan_ms:
            changes.delete(_ORPHAN + _TIME.pack(trajectory.orphan_ms) + name)
            trajectory.orphan_ms = 0
            self.orphans -= 1

    def oldest_orphans(self, count: int, changes: Changes) -> list[tuple[bytes, TrajectoryState]]:
        """Return the listed trajectories that came first, as last written."""
        oldest: list[tuple[bytes, TrajectoryState]] = []
        for entry, _ in self._state.scan(_ORPHAN):
            if len(oldest) == count:
                break
            trajectory = self.saved(entry[_TIME.size :], changes)
            # Listed no more, or anew, by a change that is not written yet.
            if trajectory is not None and trajectory.orphan_ms == _TIME.unpack_from(entry)[0]:
                oldest.append((entry[_TIME.size :], trajectory))
        return oldest


def _remove_oldest(cache: dict[bytes, Any], most: int) -> None:
    for key in list(islice(cache, max(0, len(cache) - most))):
        del cache[key]


def _step_key(name: bytes, index: int) -> bytes:
    return _STEP + name + _INDEX.pack(index)


def _demonstration_key(name: bytes, source_id: str) -> bytes:
    return _DEMONSTRATION + name + name_of(source_id)
