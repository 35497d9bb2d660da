"""Define the limits of a sandboxed run, and its result."""

from dataclasses import dataclass
from typing import Literal

Confinement = Literal["strict", "network", "none"]
"""Isolation required to run code. `strict`: no network, and no files but its own; `network`: no network; `none`:
nothing.
"""

Ended = Literal["exited", "killed", "stopped", "timeout", "memory", "output", "disk", "processes"]
"""How it ended: by itself (`exited`), by a signal (`killed`), on request (`stopped`), or at a limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one run."""

    wall_s: float = 10.0
    cpu_s: int = 10
    """Processor time of each process."""
    memory_mb: int = 512
    """Address space of each process, and resident memory of all together."""
    file_mb: int = 16
    """Size of all files in its folder together."""
    output_bytes: int = 65_536
    processes: int = 16
    open_files: int = 64


@dataclass(frozen=True, slots=True)
class Run:
    """Result of a run."""

    ended: Ended
    status: int
    """Exit status; minus the signal number if a signal ended it."""
    output: str
    """Beginning of its output and error output."""
    report: bytes
    """Bytes that it wrote to the report descriptor."""
    wall_s: float
