"""Monitor the processes of a stack: detect restarts, ends and processes that supervisord cannot keep running.

A failure of an essential process raises. Any other failed process is started again after growing pauses.
"""

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepstream.embedded.errors import StackError
from stepstream.embedded.supervisord import MISCONFIGURED, Supervisord, disk_is_full

# supervisord restarts a crashed process without limit if it ran longer than 10 s. More than RESTARTS within WINDOW_S
# seconds count as a failure.
RESTARTS, WINDOW_S = 6, 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 300.0
"""Pauses before a failed process that is not essential starts again: doubled after each failure."""


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

    def __init__(self, supervisord: Supervisord, logs: Path, essential: Collection[str] | None = None) -> None:
        """Log files are `logs`/NAME.log. Without `essential`, every process is."""
        self.supervisord = supervisord
        self._logs = logs
        self._essential = essential
        self._retries: dict[str, _Retry] = {}
        self._stopped: set[str] = set()
        self._pids: dict[str, int] = {}
        self._restarts: dict[str, list[float]] = {}

    def states(self) -> dict[str, ProcessState]:
        """Return the state of every process by name.

        Raises:
            StackError: supervisord does not answer.
        """
        return {info["name"]: _state(info) for info in self.supervisord.call("getAllProcessInfo")}

    def check(self) -> dict[str, ProcessState]:
        """Return `states` if no essential process has failed.

        Raises:
            StackError: an essential process has failed, or supervisord does not answer.
        """
        states = self.states()
        for state in states.values():
            if state.failed and self.is_essential(state.name):
                raise StackError(f"{state.name} cannot be kept running; {self.log_excerpt(state.name)}")
        return states

    def is_essential(self, name: str) -> bool:
        """Return True if a failure of this process raises."""
        return self._essential is None or name in self._essential

    def retry(self) -> Iterator[tuple[str, str]]:
        """Start the failed processes again whose pause has passed; yield each new failure's name and description.

        A process that restarts too often is stopped, and counts as failed. One that ended because it cannot use its
        settings stays down.
        """
        for state in self.check().values():
            retry = self._retries.get(state.name)
            if not state.failed and state.name not in self._stopped:
                if retry is not None:
                    retry.waits = False
                continue
            now = time.monotonic()
            if retry is None or now - retry.at > 2 * LONGEST_PAUSE_S:
                retry = self._retries[state.name] = _Retry(FIRST_PAUSE_S)
            if not retry.waits:
                retry.waits, retry.at = True, now + retry.pause_s
                again = f"the next try is in {retry.pause_s:g} s"
                if state.exit_status == MISCONFIGURED and state.status == "EXITED":
                    retry.at, again = float("inf"), "mend its settings and start `stepstream up` again"
                yield state.name, f"cannot be kept running: {again}; {self.log_excerpt(state.name)}"
            elif now >= retry.at and state.down:
                retry.pause_s = min(2 * retry.pause_s, LONGEST_PAUSE_S)
                retry.waits = False
                self._stopped.discard(state.name)
                self._restarts.pop(state.name, None)
                self.supervisord.call("startProcess", state.name, False)

    def record_start(self, name: str) -> None:
        """Record a deliberate start, so that `restarted` does not report it."""
        self._pids[name] = self.states()[name].pid

    def restarted(self) -> list[str]:
        """Return the processes whose id has changed since the last call.

        Raises:
            StackError: as `check`; or an essential process restarted too often.
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
        if len(recent) + 1 <= RESTARTS:
            return
        if not self.is_essential(name):
            self._stopped.add(name)
            self.supervisord.call("stopProcess", name, False)
        else:
            raise StackError(f"{name} crashed {len(recent) + 1} times in {WINDOW_S:g} s; {self.log_excerpt(name)}")


@dataclass
class _Retry:
    """The next start of a failed process."""

    pause_s: float
    at: float = 0.0
    """Time of the next start, or of the last one."""
    waits: bool = False
    """True from a failure to the next start."""


def _state(info: dict[str, Any]) -> ProcessState:
    return ProcessState(info["name"], info["pid"], info["statename"], info["exitstatus"])
