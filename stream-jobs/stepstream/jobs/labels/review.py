"""Find the saved trajectories that a change of consents, erasures or specifications concerns, a part in each tick.

A change of consent concerns one person or tenant, an erasure one person: an index lists their trajectories. All
trajectories are reviewed after a change of a specification, for a new version of the job, and if decisions changed
while nobody held the partition.
"""

from collections import deque
from dataclasses import dataclass

from stepstream.jobs.governance.trajectory_policy import DecisionChange, TrajectoryPolicies
from stepstream.jobs.labels import VERSION
from stepstream.jobs.labels.person_index import NAME_BYTES, all_persons, of_person, of_tenant
from stepstream.jobs.labels.trajectory_store import HEADS
from stepstream.jobs.rewards.spec_lookup import SpecLookup
from stepstream.jobs.runtime.state import Changes, PartitionState

_REVIEWED = b"r" + VERSION.encode() + b"p"
_REVIEWED_PER_TICK = 100
"""Trajectories reviewed in one tick."""
_SCANNED_PER_TICK = 2_000
"""Entries of the index read in one tick."""
_SPEC_BITS = 64


@dataclass
class _Walk:
    """Scan of keys that end with names of trajectories."""

    prefix: bytes
    tenant: str = ""
    subject: str = ""
    """Only persons with this name on `erasures`; empty: all."""
    begin: bytes = b""
    """Where to continue, behind the prefix."""


class Review:
    """Reviews of one partition."""

    def __init__(self, state: PartitionState, policies: TrajectoryPolicies, specs: SpecLookup) -> None:
        self._state, self._policies, self._specs = state, policies, specs
        reviewed = state.get(_REVIEWED)
        self._reviewed = None if reviewed is None else int.from_bytes(reviewed)
        self._walks: deque[_Walk] = deque()
        self._target: int | None = None
        # Fetched before the fingerprint: a change between the two is reviewed again.
        cursor, _ = policies.changes_since(None)
        self._cursor = cursor if self._fingerprint() == self._reviewed else None

    def due(self) -> bool:
        """Return True if something is left to review."""
        return self._target is not None or self._fingerprint() != self._reviewed

    def next_names(self, changes: Changes) -> list[bytes]:
        """Return the next trajectories to review; record it in the state once all were returned."""
        if self._target is None:
            self._begin()
        names: list[bytes] = []
        scanned = 0
        while self._walks and scanned < _SCANNED_PER_TICK and len(names) < _REVIEWED_PER_TICK:
            walk = self._walks[0]
            is_done = True
            for key, person in self._state.scan(walk.prefix, walk.begin):
                if scanned == _SCANNED_PER_TICK or len(names) == _REVIEWED_PER_TICK:
                    is_done = False
                    break
                scanned += 1
                walk.begin = key + b"\0"
                if self._concerns(walk, person):
                    names.append(key[-NAME_BYTES:])
            if is_done:
                self._walks.popleft()
        if not self._walks and self._target is not None:
            self._reviewed, self._target = self._target, None
            changes.put(_REVIEWED, self._reviewed.to_bytes(16))
        return names

    def _begin(self) -> None:
        fingerprint = self._fingerprint()
        if fingerprint == self._reviewed:
            return
        self._target = fingerprint
        same_specs = self._reviewed is not None and (fingerprint ^ self._reviewed) % (1 << _SPEC_BITS) == 0
        self._cursor, decided = self._policies.changes_since(self._cursor)
        if decided is None or not same_specs or any(change.tenant is None for change in decided):
            self._walks.append(_Walk(HEADS))
        else:
            self._walks.extend(map(_walk_of, decided))

    def _concerns(self, walk: _Walk, person: bytes) -> bool:
        if not walk.subject:
            return True
        user = person.decode("utf-8", "surrogatepass")
        return bool(user) and self._policies.subject_of(walk.tenant, user) == walk.subject

    def _fingerprint(self) -> int:
        return self._policies.fingerprint() << _SPEC_BITS | self._specs.fingerprint()


def _walk_of(change: DecisionChange) -> _Walk:
    assert change.tenant is not None
    if change.subject is not None:
        return _Walk(all_persons(change.tenant), change.tenant, change.subject)
    if change.user is not None:
        return _Walk(of_person(change.tenant, change.user))
    return _Walk(of_tenant(change.tenant))
