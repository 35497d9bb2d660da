"""Compare what inference workers serve with what the log says.

The clocks of workers differ: the broker's says how old a status is, where the topic has its time.
"""

from collections.abc import Callable, Collection, Iterable

from stepstream.topics.events import ServedVersion, WorkerStatus, new_served_version
from stepstream.versions.rollouts import ServedVersions

WrittenUs = Callable[[str], int | None]
"""Returns the time at which the broker wrote a worker's newest status, in microseconds since the Unix epoch.

None: unknown, so that the time in the status counts.
"""
MISSED_STATUSES = 3
"""Statuses that a worker may miss before it counts as gone."""
LONGEST_INTERVAL_S = 60.0
"""Interval that a worker may have although the reader has a shorter one: a status does not carry it."""


def live_workers(
    statuses: Iterable[WorkerStatus], model: str, now_us: int, silent_s: float, written_us: WrittenUs
) -> list[WorkerStatus]:
    """Return the newest statuses of a model's workers that run, by worker.

    Args:
        statuses: the newest of each worker.
        model: name of the model.
        now_us: the time now, in microseconds since the Unix epoch.
        silent_s: a worker without a status for longer is not live.
        written_us: tells the age of a status.
    """

    def is_heard(status: WorkerStatus) -> bool:
        at_us = written_us(status["worker_id"])
        return now_us - (status["occurred_at_us"] if at_us is None else at_us) <= silent_s * 1e6

    return sorted(
        (
            status
            for status in statuses
            if status["model"] == model and status["state"] != "stopping" and is_heard(status)
        ),
        key=lambda status: status["worker_id"],
    )


def loaded_versions(
    statuses: Iterable[WorkerStatus],
    model: str,
    now_us: int,
    status_every_s: float,
    heard: Collection[str] = (),
    written_us: WrittenUs = lambda _worker_id: None,
) -> set[int]:
    """Return the versions that a model's running workers have loaded or are about to.

    Args:
        statuses: the newest of each worker.
        model: name of the model.
        now_us: the time now, in microseconds since the Unix epoch.
        status_every_s: time between two statuses of a worker, as the reader's settings have it.
        heard: workers whose statuses arrived within `longest_silence_s`, so that they run even if their clocks are
            behind.
        written_us: see `live_workers`.
    """
    known = list(statuses)
    live = live_workers(known, model, now_us, longest_silence_s(status_every_s), written_us)
    live += [one for one in known if one["worker_id"] in heard and one["model"] == model and one["state"] != "stopping"]
    found = {one["version"] for status in live for one in status["tracks"]}
    return found | {status["version"] for status in live if status["version"] is not None}


def longest_silence_s(status_every_s: float) -> float:
    """Return the time for which a silent worker counts as running: three of its intervals, of at least 60 s.

    Its own setting may be longer than the reader's, and a version that is kept too long costs less than one that a
    worker misses.
    """
    return MISSED_STATUSES * max(status_every_s, LONGEST_INTERVAL_S)


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
