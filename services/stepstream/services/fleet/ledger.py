"""What the agents say they sent: one JSON line a trajectory, flushed as it ends, so that accounts can be settled.

A trajectory counts `steps` that were answered and so recorded. `unsure` tells of a call whose answer never came
(the gateway died, or the agent was stopped in the middle): one more step may or may not be recorded.
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
    """One trajectory, as its agent tells it."""

    trajectory_id: str
    task_id: str
    split: str
    group_id: str | None
    started_at_us: int
    """Microseconds since the Unix epoch."""
    status: Status = "finished"
    """`lost`: by our fault, not the agent's; `abandoned`: the fleet was stopped."""
    steps: int = 0
    unsure: bool = False
    feedback: list[str] = field(default_factory=list)
    """Event ids of the feedback that was accepted."""
    outcome: float | None = None
    end: str | None = None
    version_min: int | None = None
    version_max: int | None = None
    """Policy versions that answered, where the gateway told them."""
    error: str | None = None
    ended_at_us: int = 0


class Ledger:
    """An append-only file of attempts, of one process at a time."""

    def __init__(self, path: Path) -> None:
        """Opens it, makes it if it is new, and takes off a last line that a crash cut off."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        whole = path.read_bytes().rfind(b"\n") + 1
        if whole < self._file.tell():
            self._file.truncate(whole)

    def append(self, attempt: Attempt) -> None:
        """Writes one line and hands it to the operating system."""
        self._file.write(orjson.dumps(asdict(attempt), option=orjson.OPT_APPEND_NEWLINE))
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def ledger_path(settings: Settings) -> Path:
    """Where the fleet's ledger is."""
    return settings.fleet.ledger or settings.paths.data / "fleet" / "ledger.jsonl"


def read_ledger(path: Path) -> Iterator[Attempt]:
    """Every attempt of a ledger, none if there is no such file; a last line that a crash cut off is left out."""
    if not path.exists():
        return
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield Attempt(**orjson.loads(line))
