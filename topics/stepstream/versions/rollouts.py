"""Decide which version of a model serves which track, from the events of `checkpoints` and `rollouts`.

Both topics are compacted, so the state is the newest checkpoint of each version and the newest rollout of the model.
Without a rollout, the track `stable` follows the newest published version and there is no canary.

A trajectory's track is a function of its identity and of the canary's share: every gateway computes the same one,
without a table. A larger share only adds trajectories to the canary.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from stepstream.topics.events import Checkpoint, Rollout, Track

TRACKS: tuple[Track, ...] = ("stable", "canary")
_UNIT = 2.0**-53


@dataclass(frozen=True, slots=True)
class ServedVersions:
    """Versions that serve one model, as the log says."""

    stable: int | None
    """Version of the track `stable`; None: no version was published."""
    canary: int | None = None
    """Version of the track `canary`; None: no canary."""
    canary_share: float = 0.0
    """Share of trajectories on the track `canary`; 0 without a canary."""
    pinned: frozenset[int] = frozenset()
    """Versions whose files retention keeps."""
    previous_stable: int | None = None
    """Version to which a rollback returns; None: none is known."""
    newest: int | None = None
    """Newest published version that was not removed."""
    taken_back: frozenset[int] = frozenset()
    """Versions that were taken back for harm."""
    follows_newest: bool = True
    """True: `stable` moves with each published version; False: it is fixed."""

    def version_of(self, track: Track) -> int | None:
        """Return the version of a track; without a canary both have the stable one."""
        return self.canary if track == "canary" and self.canary is not None else self.stable

    @property
    def in_use(self) -> frozenset[int]:
        """Versions that a worker may load at any time: served, pinned, or the aim of a rollback."""
        named = (self.stable, self.canary, self.previous_stable)
        return self.pinned | {version for version in named if version is not None}


NOTHING_SERVED = ServedVersions(None)


class ModelVersions:
    """The fold of one model's events. Not thread-safe.

    Per version and for the rollout the last applied event holds; the order of all else does not matter. It keeps events
    without their `inputs`, which name every trained record and would fill the memory of a long lineage's readers.
    """

    def __init__(self) -> None:
        self._checkpoints: dict[int, Checkpoint] = {}
        self._rollout: Rollout | None = None
        self._served: ServedVersions | None = NOTHING_SERVED

    @property
    def rollout(self) -> Rollout | None:
        """The decision in force; None: none was made."""
        return self._rollout

    @property
    def checkpoints(self) -> dict[int, Checkpoint]:
        """The newest event of each version, removed ones too. Do not change it."""
        return self._checkpoints

    @property
    def served(self) -> ServedVersions:
        """Served versions after the applied events."""
        if self._served is None:
            self._served = served_versions(self._checkpoints.values(), self._rollout)
        return self._served

    def apply_checkpoint(self, version: int, checkpoint: Checkpoint | None) -> None:
        """Apply the newest event of a version, and empty its `inputs`; None: its key was deleted."""
        if checkpoint is None:
            self._checkpoints.pop(version, None)
        else:
            checkpoint["inputs"] = []
            self._checkpoints[version] = checkpoint
        self._served = None

    def apply_rollout(self, rollout: Rollout | None) -> None:
        """Apply the newest decision; None: its key was deleted."""
        self._rollout = rollout
        self._served = None


def served_versions(checkpoints: Iterable[Checkpoint], rollout: Rollout | None) -> ServedVersions:
    """Return the versions that serve a model.

    Args:
        checkpoints: the newest event of each of its versions, in any order.
        rollout: its newest decision; None: none was made.
    """
    newest = max((one["version"] for one in checkpoints if one["removed_at_us"] is None), default=None)
    if rollout is None:
        return ServedVersions(newest, newest=newest)
    stable, canary = rollout["stable_version"], rollout["canary_version"]
    return ServedVersions(
        stable=newest if stable is None else stable,
        canary=canary,
        canary_share=0.0 if canary is None else _share(rollout["canary_share"]),
        pinned=frozenset(rollout["pinned_versions"]),
        previous_stable=rollout["previous_stable_version"],
        newest=newest,
        taken_back=frozenset(rollout["taken_back_versions"]),
        follows_newest=stable is None,
    )


def ancestors(version: int, checkpoints: Mapping[int, Checkpoint]) -> Iterator[int]:
    """Yield a version and the versions that it was trained from, the newest first."""
    found: int | None = version
    while found is not None:
        yield found
        checkpoint = checkpoints.get(found)
        found = None if checkpoint is None else checkpoint["parent_version"]


def is_taken_back(version: int, checkpoints: Mapping[int, Checkpoint], taken_back: Collection[int]) -> bool:
    """Return True if a version was taken back for harm, or was trained from one that was."""
    return any(one in taken_back for one in ancestors(version, checkpoints))


def track_of(tenant: str, trajectory_id: str, model: str, share: float) -> Track:
    """Return the track that serves a trajectory: `canary` for the given share of all trajectories.

    The first 53 bits of SHA-256 over the three names are a number in [0, 1); below `share` it is the canary.
    """
    digest = hashlib.sha256()
    for name in (tenant, trajectory_id, model):
        encoded = name.encode(errors="surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    number = int.from_bytes(digest.digest()[:8], "big") >> 11
    return "canary" if number * _UNIT < share else "stable"


def _share(share: float) -> float:
    """Return the share within [0, 1]; a share that is no number counts as 0, so that no traffic moves."""
    return min(share, 1.0) if share > 0 else 0.0
