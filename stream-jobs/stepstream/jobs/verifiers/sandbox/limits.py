"""What a sandboxed run may use, and how it ended."""

from dataclasses import dataclass
from typing import Literal

Confinement = Literal["strict", "network", "none"]
"""What must be guaranteed before code runs: no network and no files but its own (`strict`), or only no network."""

Ended = Literal["exited", "killed", "timeout", "memory", "output", "disk", "processes"]
"""By itself (`exited`, or `killed` by a signal), or stopped at a limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one run may use."""

    wall_s: float = 10.0
    cpu_s: int = 10
    """Of each process."""
    memory_mb: int = 512
    """Address space of each process, and resident memory of all together."""
    file_mb: int = 16
    """Of all files in its folder together."""
    output_bytes: int = 65_536
    processes: int = 16
    open_files: int = 64


@dataclass(frozen=True, slots=True)
class Run:
    """How a run ended."""

    ended: Ended
    status: int
    """Exit status; minus the signal where one ended it."""
    output: str
    """The beginning of what it wrote to its output and error output."""
    report: bytes
    """What it wrote to the descriptor for its report."""
    wall_s: float
