"""The folder of a spool: each writer holds a subfolder of its own, and takes over those of writers that are gone."""

import fcntl
import os
from pathlib import Path

from stepstream.config import Settings

SUFFIX = ".spool"
_MOST_WRITERS = 1000


def gateway_spool(settings: Settings) -> Path:
    """Where a gateway's events wait, and where it keeps step indices."""
    return settings.gateway.spool or settings.paths.data / "spool" / "gateway"


def claim(folder: Path) -> tuple[Path, int]:
    """The first subfolder that nobody holds, and its lock, which is let go with `os.close`.

    Raises:
        OSError: a subfolder cannot be made or locked, or there are too many writers.
    """
    for number in range(_MOST_WRITERS):
        own = folder / f"writer-{number}"
        own.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = _try_lock(own)
        if lock is not None:
            return own, lock
    raise OSError(f"{folder}: {_MOST_WRITERS} processes write there already")


def _try_lock(folder: Path) -> int | None:
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except BaseException:
        os.close(lock)
        raise
    return lock


def abandoned(folder: Path, own: Path) -> list[Path]:
    """The subfolders of other writers that hold segments; whether those writers live, `adopt` finds out."""
    return sorted(path for path in folder.glob("writer-*") if path != own and segment_files(path))


def adopt(other: Path, own: Path) -> int:
    """Moves the segments of a writer that is gone behind one's own; returns the next free number."""
    taken = [int(path.name.removesuffix(SUFFIX)) for path in segment_files(own)]
    free = max(taken, default=-1) + 1
    lock = _try_lock(other)
    if lock is None:
        return free
    try:
        for path in segment_files(other):
            path.rename(own / f"{free:012d}{SUFFIX}")
            free += 1
    finally:
        os.close(lock)
    return free


def segment_files(folder: Path) -> list[Path]:
    """The segments of a writer, oldest first."""
    return sorted(folder.glob(f"*{SUFFIX}"))
