"""Monitor the processes of a stack: detect restarts, ends and processes that supervisord cannot keep running."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepstream.embedded.errors import StackError
from stepstream.embedded.supervisord import MISCONFIGURED, Supervisord, disk_is_full

# supervisord restarts a crashed process without limit if it ran longer than 10 s. More than RESTARTS within WINDOW_S
# seconds count as a failure.
RESTARTS, WINDOW_S = 6, 60.0


@dataclass(frozen=True)
class ProcessState:
    """State of a process as supervisord reports it."""

    name: str
    pid: int
    """Process id; 0 while it is down."""
    status: str
    exit_status: int

    @property
    def ended(self) -> bool:
        """True if it exited with status 0 and stays down. Any other exit causes a restart."""
        return self.status == "EXITED" and self.exit_status == 0

    @property
    def failed(self) -> bool:
        """True if supervisord stopped retrying, or the process exited because it cannot use its settings."""
        return self.status == "FATAL" or (self.status == "EXITED" and self.exit_status == MISCONFIGURED)

    @property
    def down(self) -> bool:
        """True if it does not run and supervisord will not restart it."""
        return self.status == "STOPPED" or self.failed or self.ended


class ProcessMonitor:
    """Compares the processes' states with those it saw before."""

    def __init__(self, supervisord: Supervisord, logs: Path) -> None:
        """Log files are `logs`/NAME.log."""
        self.supervisord = supervisord
        self._logs = logs
        self._pids: dict[str, int] = {}
        self._restarts: dict[str, list[float]] = {}

    def states(self) -> dict[str, ProcessState]:
        """Return the state of every process by name.

        Raises:
            StackError: supervisord does not answer.
        """
        return {info["name"]: _state(info) for info in self.supervisord.call("getAllProcessInfo")}

    def check(self) -> dict[str, ProcessState]:
        """Return `states` if no process has failed.

        Raises:
            StackError: a process has failed, or supervisord does not answer.
        """
        states = self.states()
        for state in states.values():
            if state.failed:
                raise StackError(f"{state.name} cannot be kept running; {self.log_excerpt(state.name)}")
        return states

    def record_start(self, name: str) -> None:
        """Record a deliberate start, so that `restarted` does not report it."""
        self._pids[name] = self.states()[name].pid

    def restarted(self) -> list[str]:
        """Return the processes whose id has changed since the last call.

        Raises:
            StackError: as `check`; or a process restarted too often.
        """
        names = []
        for state in self.check().values():
            if not state.pid:
                continue
            if self._pids.setdefault(state.name, state.pid) != state.pid:
                self._pids[state.name] = state.pid
                self._count(state.name)
                names.append(state.name)
        return names

    def log_excerpt(self, name: str) -> str:
        """Return a message with the path and the last line of a process's log, and a full disk if there is one."""
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
            raise StackError(f"{name} crashed {len(recent) + 1} times in {WINDOW_S:g} s; {self.log_excerpt(name)}")


def _state(info: dict[str, Any]) -> ProcessState:
    return ProcessState(info["name"], info["pid"], info["statename"], info["exitstatus"])
