"""Write the agents' own account of what they sent: one JSON line a trajectory, flushed when it ends.

Tests and the demo compare it with the recorded steps. `steps` counts answered calls, which the gateway has recorded.
`unsure` marks a call without an answer (the gateway died, or the agent was stopped): one more step may be recorded.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import orjson

from stepstream.config import Settings

Status = Literal["finished", "lost", "abandoned"]


@dataclass(slots=True)
class Attempt:
    """One trajectory, as its agent reports it."""

    trajectory_id: str
    task_id: str
    split: str
    group_id: str | None
    started_at_us: int
    """Microseconds since the Unix epoch."""
    status: Status = "finished"
    """`lost`: a failure outside the agent; `abandoned`: the fleet was stopped."""
    steps: int = 0
    unsure: bool = False
    feedback: list[str] = field(default_factory=list)
    """Event ids of the accepted feedback."""
    outcome: float | None = None
    end: str | None = None
    version_min: int | None = None
    version_max: int | None = None
    """Range of the policy versions that answered; None: the gateway reported none."""
    error: str | None = None
    ended_at_us: int = 0


class Ledger:
    """An append-only file of attempts, written by one process at a time."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, and truncate a last line that a crash cut off."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        end = path.read_bytes().rfind(b"\n") + 1
        if end < self._file.tell():
            self._file.truncate(end)

    def append(self, attempt: Attempt) -> None:
        """Write one line and flush it to the operating system."""
        self._file.write(orjson.dumps(asdict(attempt), option=orjson.OPT_APPEND_NEWLINE))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def ledger_path(settings: Settings) -> Path:
    """Return `fleet.ledger`, or its default below the data folder."""
    return settings.fleet.ledger or settings.paths.data / "fleet" / "ledger.jsonl"


def read_ledger(path: Path) -> Iterator[Attempt]:
    """Yield a ledger's attempts, none if the file is missing; skips a last line that a crash cut off."""
    if not path.exists():
        return
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield Attempt(**orjson.loads(line))
