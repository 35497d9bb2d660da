"""Finds clusters of nearly equal trajectories among a tenant's newest, and says which are too many. Pure.

Signatures are looked up in a locality-sensitive index (MinHash-LSH) and compared in full; whoever is near enough to a
trajectory is of its cluster. Of a cluster, at most `cap` groups are let in: the attempts of one group are meant to be
alike, so they count as one.
"""

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stepstream.jobs.curation.signature import PERMUTATIONS, minhash_of


@dataclass
class _Cluster:
    name: str
    admitted: dict[str, int] = field(default_factory=dict)
    """Trajectories that were let in, by group."""
    members: int = 0


@dataclass(frozen=True, slots=True)
class _Member:
    cluster: _Cluster
    group: str
    signature: tuple[int, ...]
    held: bool


class NearDuplicates:
    """One tenant's window. State is small: `window` signatures."""

    def __init__(self, cap: int, threshold: float, window: int) -> None:
        """`cap` groups a cluster, alike from the Jaccard similarity `threshold` on, among the newest `window`."""
        from datasketch import MinHashLSH

        self._cap, self._threshold, self._window = cap, threshold, window
        self._index: Any = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS)
        self._members: dict[str, _Member] = {}
        self._order: deque[str] = deque()
        self._clusters: dict[str, _Cluster] = {}

    def add(
        self, trajectory_id: str, group_id: str | None, signature: Sequence[int], decided: str | None, released: bool
    ) -> str | None:
        """Takes in a trajectory; the name of the cluster of which it is one too many, or None. A second time: None.

        Args:
            trajectory_id: the trajectory.
            group_id: attempts that are compared with each other, where it is one of some.
            signature: of its text.
            decided: cluster for which it was held before, if it was: a decision is not taken again.
            released: whether somebody let it in.
        """
        if trajectory_id in self._members or len(signature) != PERMUTATIONS:
            return None
        group = group_id or trajectory_id
        values = tuple(signature)
        near = self._nearest(values)
        # By likeness first: read again in another order, one that was held may come before those it is like.
        name = near.name if near is not None else decided or cluster_name(trajectory_id)
        cluster = self._clusters.setdefault(name, _Cluster(name))
        full = group not in cluster.admitted and len(cluster.admitted) >= self._cap
        held = not released and (decided is not None or full)
        self._insert(trajectory_id, _Member(cluster, group, values, held))
        return cluster.name if held and decided is None else None

    def forget(self, trajectory_id: str) -> None:
        """Takes a trajectory out, as one that was erased."""
        member = self._members.pop(trajectory_id, None)
        if member is None:
            return
        self._index.remove(trajectory_id)
        cluster = member.cluster
        cluster.members -= 1
        if not cluster.members:
            del self._clusters[cluster.name]
        if not member.held:
            cluster.admitted[member.group] -= 1
            if not cluster.admitted[member.group]:
                del cluster.admitted[member.group]

    def _insert(self, trajectory_id: str, member: _Member) -> None:
        self._members[trajectory_id] = member
        self._index.insert(trajectory_id, minhash_of(member.signature), check_duplication=False)
        self._order.append(trajectory_id)
        member.cluster.members += 1
        if not member.held:
            member.cluster.admitted[member.group] = member.cluster.admitted.get(member.group, 0) + 1
        while len(self._order) > self._window:
            self.forget(self._order.popleft())

    def _nearest(self, signature: tuple[int, ...]) -> _Cluster | None:
        """The cluster of the most similar trajectory, if that is similar enough; by name among equals."""
        found = []
        for candidate in self._index.query(minhash_of(signature)):
            member = self._members[candidate]
            same = sum(a == b for a, b in zip(signature, member.signature, strict=True))
            if same >= self._threshold * PERMUTATIONS:
                found.append((-same, member.cluster.name))
        return self._clusters[min(found)[1]] if found else None


def cluster_name(trajectory_id: str) -> str:
    """A short name for the cluster that a trajectory founds."""
    return hashlib.blake2b(trajectory_id.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
