"""Cluster nearly equal trajectories among a tenant's newest, and select those above the cap. Pure.

A locality-sensitive index (MinHash-LSH) finds similar signatures, which are then compared completely. A trajectory
joins the cluster of the most similar one. At most `cap` groups of a cluster are admitted. The attempts of one group are
alike by design, so they count as one.
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
    """Number of admitted trajectories by group."""
    members: int = 0


@dataclass(frozen=True, slots=True)
class _Member:
    cluster: _Cluster
    group: str
    signature: tuple[int, ...]
    held: bool


class NearDuplicates:
    """The newest `window` trajectories of one tenant, as signatures."""

    def __init__(self, cap: int, threshold: float, window: int) -> None:
        """Admit `cap` groups per cluster; `threshold` is the lowest Jaccard similarity inside a cluster."""
        from datasketch import MinHashLSH

        self._cap, self._threshold, self._window = cap, threshold, window
        self._index: Any = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS)
        self._members: dict[str, _Member] = {}
        self._order: deque[str] = deque()
        self._clusters: dict[str, _Cluster] = {}

    def add(
        self, trajectory_id: str, group_id: str | None, signature: Sequence[int], decided: str | None, released: bool
    ) -> str | None:
        """Add a trajectory; return the name of its cluster if the trajectory must be held, else None.

        Args:
            trajectory_id: id of the trajectory; None is returned if it was added before.
            group_id: id of its group; None: it has none.
            signature: signature of its text.
            decided: cluster for which it is already held; None: it is not. A decision is not taken again.
            released: True if a person released it.
        """
        if trajectory_id in self._members or len(signature) != PERMUTATIONS:
            return None
        group = group_id or trajectory_id
        values = tuple(signature)
        near = self._nearest(values)
        # Similarity comes first: after a restart, a held trajectory may be read before those that it resembles.
        name = near.name if near is not None else decided or cluster_name(trajectory_id)
        cluster = self._clusters.setdefault(name, _Cluster(name))
        full = group not in cluster.admitted and len(cluster.admitted) >= self._cap
        held = not released and (decided is not None or full)
        self._insert(trajectory_id, _Member(cluster, group, values, held))
        return cluster.name if held and decided is None else None

    def forget(self, trajectory_id: str) -> None:
        """Remove a trajectory, for example an erased one."""
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
        """Return the cluster of the most similar trajectory above the threshold; among equals, the first by name."""
        similar = []
        for candidate in self._index.query(minhash_of(signature)):
            member = self._members[candidate]
            same = sum(a == b for a, b in zip(signature, member.signature, strict=True))
            if same >= self._threshold * PERMUTATIONS:
                similar.append((-same, member.cluster.name))
        return self._clusters[min(similar)[1]] if similar else None


def cluster_name(trajectory_id: str) -> str:
    """Return a short name for the cluster of which a trajectory is the first."""
    return hashlib.blake2b(trajectory_id.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
