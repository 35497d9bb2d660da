"""Print the disk, memory and minutes that `make test` or `make demo` needs, and warn if this machine has less.

    python tools/check_machine.py test|demo|demo-model

It runs before anything is installed, so it needs nothing but Python. A warning stops nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Needs(NamedTuple):
    """The needs of a command; 1 GB is 10^9 bytes."""

    installed: str
    """Path of the file that `make` writes once everything is installed."""
    install_gb: float
    """Disk that the packages take; 0 remains of it once they are installed."""
    download_gb: float
    """Part of `install_gb` that comes over the network."""
    data_gb: float
    """Disk that a run takes in `var/` and the folder of temporary files."""
    memory_gb: float
    """Peak of all processes together."""
    minutes: str
    """Duration on 2 quiet cores, without the installation."""


COMMANDS = {
    "demo": Needs(".venv/.demo", 6.5, 3, 1, 3, "2 to 3"),
    "demo-model": Needs(".venv/.demo-model", 9, 4, 12, 10, "about 10"),
    "test": Needs(".venv/.dev", 9.5, 4, 3, 13, "40 to 60"),
}


def available_gb() -> float | None:
    """Return the memory that new processes may use; None: unknown on this system."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        found = int(lines["MemAvailable"].split()[0]) * 1024 / 1e9
    except (OSError, KeyError):
        return None
    try:  # a container may have less than its machine
        limit, used = (Path("/sys/fs/cgroup", name).read_text() for name in ("memory.max", "memory.current"))
        return min(found, (int(limit) - int(used)) / 1e9)
    except (OSError, ValueError):
        return found


def report(command: str, free_gb: float, memory_gb: float | None, installed: bool) -> list[str]:
    """Return a line with the needs of a command, and a warning with a remedy for each that is not met.

    Args:
        command: a key of `COMMANDS`.
        free_gb: free disk of the repository's folder.
        memory_gb: available memory; None: unknown.
        installed: the packages are there.
    """
    needs = COMMANDS[command]
    disk_gb = needs.data_gb + (0 if installed else needs.install_gb)
    first = "" if installed else f" after the installation, which downloads {needs.download_gb:g} GB"
    has = "" if memory_gb is None else f" ({memory_gb:.1f} available)"
    lines = [
        f"== make {command} needs {disk_gb:g} GB of disk ({free_gb:.1f} free), {needs.memory_gb:g} GB of memory{has} "
        f"and on 2 cores {needs.minutes} minutes{first}"
    ]
    if free_gb < disk_gb:
        lines.append(
            f"warning: {disk_gb - free_gb:.1f} GB of disk are missing: make room, `make clean` removes local data, or "
            "clone the repository on another disk"
        )
    if memory_gb is not None and memory_gb < needs.memory_gb:
        remedy = "end other programs" + (", or run `make test TEST_PROCESSES=1`" if command == "test" else "")
        lines.append(f"warning: {needs.memory_gb - memory_gb:.1f} GB of memory are missing: {remedy}")
    return lines


def main() -> None:
    """Report on this machine."""
    command = sys.argv[1]
    free_gb = shutil.disk_usage(ROOT).free / 1e9
    print("\n".join(report(command, free_gb, available_gb(), os.path.exists(ROOT / COMMANDS[command].installed))))


if __name__ == "__main__":
    main()
