"""Compare what inference workers serve with what the log says."""

from collections.abc import Iterable

from stepstream.topics.events import ServedVersion, WorkerStatus, new_served_version
from stepstream.versions.rollouts import ServedVersions

MISSED_STATUSES = 3
"""Statuses that a worker may miss before it counts as gone."""
LONGEST_INTERVAL_S = 60.0
"""Interval that a worker may have although the reader has a shorter one: a status does not carry it."""


def live_workers(statuses: Iterable[WorkerStatus], model: str, now_us: int, silent_s: float) -> list[WorkerStatus]:
    """Return the newest statuses of a model's workers that run, by worker.

    Args:
        statuses: the newest of each worker.
        model: name of the model.
        now_us: the time now, in microseconds since the Unix epoch.
        silent_s: a worker without a status for longer is not live.
    """
    return sorted(
        (
            status
            for status in statuses
            if status["model"] == model
            and status["state"] != "stopping"
            and now_us - status["occurred_at_us"] <= silent_s * 1e6
        ),
        key=lambda status: status["worker_id"],
    )


def loaded_versions(statuses: Iterable[WorkerStatus], model: str, now_us: int, status_every_s: float) -> set[int]:
    """Return the versions that a model's running workers have loaded or are about to.

    A worker counts as running for three of its intervals, of at least 60 s: its own setting may be longer than the
    reader's, and a version that is kept too long costs less than one that a worker misses.

    Args:
        statuses: the newest of each worker.
        model: name of the model.
        now_us: the time now, in microseconds since the Unix epoch.
        status_every_s: time between two statuses of a worker, as the reader's settings have it.
    """
    found = set[int]()
    for status in live_workers(statuses, model, now_us, MISSED_STATUSES * max(status_every_s, LONGEST_INTERVAL_S)):
        found |= {one["version"] for one in status["tracks"]}
        found |= {version for version in (status["version"],) if version is not None}
    return found


def served_tracks(status: WorkerStatus) -> list[ServedVersion]:
    """Return the versions that a worker serves by track; empty: it serves none."""
    if status["tracks"] or status["version"] is None:
        return status["tracks"]
    return [new_served_version(track="stable", version=status["version"])]


def disagreements(workers: Iterable[WorkerStatus], served: ServedVersions) -> dict[str, str]:
    """Return why a worker does not serve what the log says, by worker; empty: all agree.

    A canary that no worker serves counts for all of them, under the key `canary`.
    """
    found: dict[str, str] = {}
    canaries: set[int] = set()
    for status in workers:
        tracks = served_tracks(status)
        wrong = [
            f"{one['track']} is {one['version']}, not {served.version_of(one['track'])}"
            for one in tracks
            if one["version"] != served.version_of(one["track"])
        ]
        if not tracks:
            wrong = ["serves no version"]
        if wrong:
            reason = f" ({status['reason']})" if status["reason"] else ""
            found[status["worker_id"]] = ", ".join(wrong) + reason
        canaries |= {one["version"] for one in tracks if one["track"] == "canary"}
    if served.canary is not None and served.canary not in canaries:
        found["canary"] = f"no worker serves version {served.canary}"
    return found
