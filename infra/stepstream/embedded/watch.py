"""Watching the processes of a stack: which crashed and came back, which ended, which cannot be mended."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepstream.embedded.errors import StackError
from stepstream.embedded.supervisord import MISCONFIGURED, Supervisord, disk_is_full

# supervisord starts what crashed again, at once if it had run for a while, and so for ever. This many times
# within this many seconds means that it cannot be mended.
RESTARTS, WINDOW_S = 6, 60.0


@dataclass(frozen=True)
class State:
    """A process as supervisord has it; `pid` is 0 while it is down."""

    name: str
    pid: int
    status: str
    exit_status: int

    @property
    def ended(self) -> bool:
        """Its work is done: it exited as it may, and stays down. Any other exit is followed by a restart."""
        return self.status == "EXITED" and self.exit_status == 0

    @property
    def failed(self) -> bool:
        """Given up: too many failed starts, or it said that it cannot use its settings."""
        return self.status == "FATAL" or (self.status == "EXITED" and self.exit_status == MISCONFIGURED)

    @property
    def down(self) -> bool:
        """Not running, and not about to be."""
        return self.status == "STOPPED" or self.failed or self.ended


class Watch:
    """Remembers what it saw, to tell what changed since."""

    def __init__(self, supervisord: Supervisord, logs: Path) -> None:
        """Knows nothing before `restarted` or `expect`."""
        self.supervisord = supervisord
        self._logs = logs
        self._pids: dict[str, int] = {}
        self._restarts: dict[str, list[float]] = {}

    def states(self) -> dict[str, State]:
        """All processes, by name.

        Raises:
            StackError: the supervisor is gone.
        """
        return {info["name"]: _state(info) for info in self.supervisord.call("getAllProcessInfo")}

    def look(self) -> dict[str, State]:
        """As `states`.

        Raises:
            StackError: also when a process was given up, or said that it cannot work with its settings.
        """
        states = self.states()
        for state in states.values():
            if state.failed:
                raise StackError(f"{state.name} cannot be kept running; {self.last_words(state.name)}")
        return states

    def expect(self, name: str) -> None:
        """Takes the process as it now is for known: it was started on purpose."""
        self._pids[name] = self.states()[name].pid

    def restarted(self) -> list[str]:
        """Processes that run under another id than when last seen here.

        Raises:
            StackError: as `look`; and for one that was restarted again and again.
        """
        names = []
        for state in self.look().values():
            if not state.pid:
                continue
            if self._pids.setdefault(state.name, state.pid) != state.pid:
                self._pids[state.name] = state.pid
                self._count(state.name)
                names.append(state.name)
        return names

    def last_words(self, name: str) -> str:
        """Where a process's log is, and its last line."""
        log = self._logs / f"{name}.log"
        try:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        full = f"the disk of {self._logs.parent} is full: make room; " if disk_is_full(self._logs) else ""
        return f"{full}its log {log} ends: {lines[-1] if lines else '(empty)'}"

    def _count(self, name: str) -> None:
        now = time.monotonic()
        recent = [at for at in self._restarts.get(name, []) if now - at < WINDOW_S]
        self._restarts[name] = [*recent, now]
        if len(recent) + 1 > RESTARTS:
            raise StackError(f"{name} crashed {len(recent) + 1} times in {WINDOW_S:g} s; {self.last_words(name)}")


def _state(info: dict[str, Any]) -> State:
    return State(info["name"], info["pid"], info["statename"], info["exitstatus"])
