"""Limit the number of a run's processes by a control group of the kernel, where this process may create one.

The kernel exempts root from RLIMIT_NPROC, also in a user namespace. Code of a job that runs as root could fork until
the next look at its processes, ten thousand times and more.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "stepstream-verify-"
_PAUSE_S, _END_S = 0.005, 2.0
"""Pause between attempts to remove a group, and the longest wait for the end of its killed tasks, in seconds."""
_numbers = count()


@contextmanager
def process_limit(most: int) -> Iterator[Path | None]:
    """Yield the file to which a process writes `0` to enter a group of at most `most` tasks; remove the group at exit.

    None: this process may create no group, as most users but root may not.
    """
    folder = _folder()
    if folder is None:
        yield None
        return
    _remove_left(folder)
    group = folder / f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
    try:
        group.mkdir()
        (group / "pids.max").write_text(str(most))
    except OSError:
        _remove(group)
        yield None
        return
    try:
        yield group / "cgroup.procs"
    finally:
        _remove(group, _END_S)


def _folder() -> Path | None:
    """Return the folder of this process's own group in the hierarchy that limits tasks; None: there is none."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        folder = {"pids": _ROOT / "pids", "": _ROOT}.get(controllers)
        if folder is not None and os.access(inside := folder / path.lstrip("/"), os.W_OK):
            return inside
    return None


def _remove_left(folder: Path) -> None:
    """Remove the groups of processes that were killed."""
    for group in folder.glob(f"{_PREFIX}*"):
        owner = group.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path("/proc", owner).exists():
            _remove(group)


def _remove(group: Path, within_s: float = 0.0) -> None:
    """Remove a group; the kernel allows it once all tasks have ended."""
    deadline = time.monotonic() + within_s
    while True:
        with suppress(OSError):
            group.rmdir()
        if not group.exists() or time.monotonic() >= deadline:
            return
        time.sleep(_PAUSE_S)
