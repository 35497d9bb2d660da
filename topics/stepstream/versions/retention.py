"""Choose the versions of a model whose files retention removes: never one that is served, pinned or needed by another.

No I/O of its own; the learner, after each version, and `stepstream models prune` publish the removals and delete the
files.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from stepstream.topics.events import Checkpoint
from stepstream.topics.ids import new_event_id
from stepstream.versions.layout import TRAINING, role_of
from stepstream.versions.rollouts import ServedVersions

REASON = "retention"
"""`removal_reason` of the removals that are chosen here."""


@dataclass(frozen=True, slots=True)
class Removals:
    """Versions of one model that lose files."""

    versions: tuple[int, ...] = ()
    """Versions that lose all files."""
    training: tuple[int, ...] = ()
    """Versions that lose their training state and stay servable."""


def removals_now(
    checkpoints: Mapping[int, Checkpoint],
    served: ServedVersions,
    loaded: Collection[int],
    *,
    keep_versions: int,
    keep_training: int,
) -> Removals:
    """Return what to remove of a model, as the log says now; see `removals_of`.

    What the tracks, a rollback or a pin names keeps its training state too: the learner continues from it if the newer
    versions are taken back.

    Args:
        checkpoints: newest event of each version.
        served: what the decisions about the model name.
        loaded: versions that its workers hold.
        keep_versions: number of newest versions to keep; 0: all.
        keep_training: number of newest versions whose training state is kept; 0: all.
    """
    return removals_of(
        checkpoints,
        served.in_use.union(loaded),
        keep_versions=keep_versions,
        keep_training=keep_training,
        resumable=served.in_use,
    )


def removals_of(
    checkpoints: Mapping[int, Checkpoint],
    in_use: Collection[int],
    *,
    keep_versions: int,
    keep_training: int,
    resumable: Collection[int] = (),
) -> Removals:
    """Return what to remove of a model.

    Kept are the newest versions, those in use, the root of each kept version's lineage (a rebuild begins there, and it
    is the reference policy), the parent of the newest, and all that a kept delta or adapters are completed from.

    Args:
        checkpoints: newest event of each version.
        in_use: versions that serve a track or a worker, to which a rollback returns, or that are pinned.
        keep_versions: number of newest versions to keep; 0: all.
        keep_training: number of newest versions whose training state is kept; 0: all.
        resumable: further versions whose training state is kept.
    """
    present = {version: one for version, one in checkpoints.items() if one["removed_at_us"] is None}
    if not present:
        return Removals()
    newest_first = sorted(present, reverse=True)
    kept = set(newest_first if not keep_versions else newest_first[:keep_versions]) | (set(in_use) & set(present))
    parent = present[newest_first[0]]["parent_version"]
    kept |= {version for version in (parent,) if version in present}
    kept |= {_root(checkpoints, version) for version in kept}
    kept |= _bases(present, kept)
    with_training = set(newest_first if not keep_training else newest_first[:keep_training])
    with_training |= set(resumable)
    return Removals(
        tuple(version for version in sorted(present) if version not in kept),
        tuple(
            version
            for version in sorted(kept & set(present))
            if version not in with_training
            # Versions of the old layout keep their training state: it lies among the files that workers load.
            and any(file["path"].startswith(f"{TRAINING}/") for file in present[version]["files"])
        ),
    )


def removal_events(
    checkpoints: Mapping[int, Checkpoint], removals: Removals, now_us: int
) -> list[tuple[Checkpoint, str]]:
    """Return the events that announce removals, each with the part of the folder to remove then; empty: all of it.

    A version that only loses its training state keeps its event's id: it is not published anew.

    Args:
        checkpoints: the newest event of each version to remove, with its inputs.
        removals: what to remove.
        now_us: the time now, in microseconds since the Unix epoch.
    """
    found: list[tuple[Checkpoint, str]] = []
    for version in removals.versions:
        gone: Checkpoint = {**checkpoints[version], "removed_at_us": now_us, "removal_reason": REASON}
        gone["event_id"] = new_event_id()
        found.append((gone, ""))
    return found + [(without_training(checkpoints[version]), TRAINING) for version in removals.training]


def without_training(checkpoint: Checkpoint) -> Checkpoint:
    """Return the event of a version without its training state; its signature stays valid."""
    return {**checkpoint, "files": [file for file in checkpoint["files"] if role_of(file) != "training"]}


def announce_removals(
    checkpoints: Mapping[int, Checkpoint],
    removals: Removals,
    now_us: int,
    publish: Callable[[Iterable[Checkpoint]], None],
    removals_by_log: Callable[[], Removals],
) -> list[tuple[Checkpoint, str]]:
    """Publish removals, and put back what was named meanwhile; return those that hold.

    1. Publish the removals: later decisions see them.
    2. Read the log again: an earlier decision may name a removed version, or a new version be completed from it.
    3. Publish such a version again. If the log cannot be read, publish all again.

    Files may go once this returns.

    Args:
        checkpoints: the newest event of each version to remove, with its inputs.
        removals: what to remove.
        now_us: the time now, in microseconds since the Unix epoch.
        publish: publishes events; returns when they are durable.
        removals_by_log: reads the log to its end, and returns what to remove, as if step 1 had not been.

    Returns:
        The events as `removal_events` does.
    """
    events = removal_events(checkpoints, removals, now_us)
    if not events:
        return []
    publish(checkpoint for checkpoint, _ in events)
    try:
        now = removals_by_log()
    except Exception:
        publish(restored(checkpoints[checkpoint["version"]]) for checkpoint, _ in events)
        raise
    kept = {*removals.versions} - {*now.versions} | {*removals.training} - {*now.training}
    publish(restored(checkpoints[version]) for version in sorted(kept))
    return [(checkpoint, part) for checkpoint, part in events if checkpoint["version"] not in kept]


def restored(checkpoint: Checkpoint) -> Checkpoint:
    """Return the event that puts a version back whose files were not deleted yet."""
    return {**checkpoint, "event_id": new_event_id(), "removed_at_us": None, "removal_reason": ""}


def is_named(checkpoint: Checkpoint, part: str, checkpoints: Iterable[Checkpoint]) -> bool:
    """Return True if a present version names files in the same folder, so that they must stay.

    Args:
        checkpoint: the version whose files are to go.
        part: part of its folder to remove; empty: all of it.
        checkpoints: newest event of each version, removals included.
    """
    return any(
        one["uri"] == checkpoint["uri"]
        and one["removed_at_us"] is None
        and (not part or any(file["path"].startswith(f"{part}/") for file in one["files"]))
        for one in checkpoints
    )


def _root(checkpoints: Mapping[int, Checkpoint], version: int) -> int:
    """Return the root of a version's lineage, or the oldest ancestor that is known."""
    while True:
        parent = checkpoints[version]["parent_version"]
        if parent is None or parent not in checkpoints or parent >= version:
            return version
        version = parent


def _bases(present: Mapping[int, Checkpoint], kept: Collection[int]) -> set[int]:
    """Return all versions that the kept ones are completed from."""
    found: set[int] = set()
    waiting = list(kept)
    while waiting:
        one = present.get(waiting.pop())
        base = None if one is None else one["base_version"]
        if base is not None and base not in found:
            found.add(base)
            waiting.append(base)
    return found
