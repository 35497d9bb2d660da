"""The embedded stack: starts its processes in order, watches them, stops them, and leaves nothing running."""

import os
import signal
import time
import uuid
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from stepstream.config import Settings, environment_of
from stepstream.embedded import install
from stepstream.embedded.addresses import wire
from stepstream.embedded.errors import StackError
from stepstream.embedded.ports import check_free
from stepstream.embedded.processes import Process, levels, select, table
from stepstream.embedded.startup import POLL_S, Event, OnEvent, Startup
from stepstream.embedded.supervisord import OWNER, Supervisord
from stepstream.embedded.watch import Watch

__all__ = ["Event", "OnEvent", "Stack"]

# Carried by every process of a stack and by whatever they start, so that none can hide.
_MARK = "STEPSTREAM_STACK_ID"


def _ignore(_event: Event) -> None:
    pass


class Stack:
    """The chosen processes over one data folder.

    Use it as a context manager: leaving it stops everything. Not to be shared between threads, except `pid`,
    `kill` and `members`.
    """

    def __init__(
        self,
        settings: Settings,
        processes: Collection[str] | None = None,
        on_event: OnEvent = _ignore,
        held: Collection[str] = (),
    ) -> None:
        """Nothing runs yet.

        Args:
            settings: wired here, see `settings`.
            processes: names to run, `worker` for all workers; default: all. An external part is only waited for.
            on_event: called as things happen, in the calling thread of `start`, `poll` and `stop`.
            held: names that `start` leaves down, for `start_process`.

        Raises:
            StackError: an unknown name.
        """
        self.settings = wire(settings)
        self._parts = select(table(self.settings), processes)
        self._held = frozenset(held)
        self._on_event = on_event
        self._id = uuid.uuid4().hex
        self._supervisord = Supervisord(self.settings.paths.data)
        self._watch = Watch(self._supervisord, self.settings.paths.data / "logs")
        self._ended: set[str] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def processes(self) -> list[Process]:
        """The processes that this stack runs, in the order of the table."""
        return [part for part in self._parts if isinstance(part, Process) and not part.external]

    @property
    def environment(self) -> dict[str, str]:
        """What every process of the stack gets: this process's variables, with exactly these settings."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STEPSTREAM_")}
        defaults = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        return defaults | kept | environment_of(self.settings) | {_MARK: self._id, OWNER: str(os.getpid())}

    def log_file(self, name: str) -> Path:
        """Where a process's output goes."""
        return self.settings.paths.data / "logs" / f"{name}.log"

    def start(self) -> None:
        """Starts everything, each part as soon as what it needs is ready; stops it all again if that fails.

        Raises:
            StackError: a port that is taken, a process that does not come up, an external part that does not
                answer, within `stack.start_deadline_s` seconds in all (the one-time install not counted).
        """
        self._supervisord.wait_for_predecessor()
        check_free(port for process in self.processes for port in process.ports)
        if any(process.name == "broker" for process in self.processes) and not install.installed(self.settings):
            install.install(self.settings, lambda line: self._on_event(Event("install", "starting", line)))
            self._on_event(Event("install", "ready"))
        try:
            self._supervisord.launch(self.processes, self.environment)
            Startup(self.settings, self._parts, self._held, self._watch, self._on_event).run()
            self._watch.restarted()
        except BaseException:
            self.stop()
            raise

    def poll(self) -> None:
        """Looks at every process once; tells of restarts and ends through `on_event`. Call it about once a second.

        Raises:
            StackError: one that was given up, or that crashes again and again, or the supervisor is gone.
        """
        for name in self._watch.restarted():
            self._on_event(Event(name, "restarted"))
        ended = {state.name for state in self._watch.states().values() if state.ended}
        for name in sorted(ended - self._ended):
            self._on_event(Event(name, "ended"))
        self._ended = ended

    @property
    def ended(self) -> frozenset[str]:
        """Processes whose work is done, as of the last `poll`."""
        return frozenset(self._ended)

    def pid(self, name: str) -> int:
        """The process id of a process; 0 while it is down."""
        return int(self._supervisord.call("getProcessInfo", name)["pid"])

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Sends a signal to a process itself (not to what it started); returns its process id.

        Raises:
            StackError: it is not running.
        """
        pid = self.pid(name)
        if not pid:
            raise StackError(f"{name} is not running")
        os.kill(pid, number)
        return pid

    def wait_ready(self, name: str, *, after_pid: int = 0) -> int:
        """Blocks until a process is ready under another process id than `after_pid`; returns its id.

        One whose work is done by then counts as ready; its id is 0.

        Raises:
            StackError: it is not, within `stack.start_deadline_s` seconds, or it was given up.
        """
        process = next(process for process in self.processes if process.name == name)
        patience_s = self.settings.stack.start_deadline_s
        deadline = time.monotonic() + patience_s
        while True:
            state = self._watch.look()[name]
            if state.ended or (state.pid and state.pid != after_pid and process.ready()):
                return state.pid
            if time.monotonic() > deadline:
                raise StackError(f"{name} is not ready after {patience_s:g} s; {self._watch.last_words(name)}")
            time.sleep(POLL_S)

    def start_process(self, name: str) -> int:
        """Starts one that was held or stopped, and waits until it is ready; returns its process id."""
        self._supervisord.call("startProcess", name, False)
        self._watch.expect(name)
        return self.wait_ready(name)

    def stop_process(self, name: str) -> None:
        """Stops one process with SIGTERM and leaves it down; blocks until it is. Nothing if it is down already."""
        self._stop_level({name})

    def restart(self, name: str) -> int:
        """Stops a process, starts it again and waits until it is ready; returns its new process id."""
        self.stop_process(name)
        return self.start_process(name)

    def members(self) -> list[psutil.Process]:
        """Every process of this stack that is alive: the supervisor, its children, and whatever they started."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self._id and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def stop(self) -> None:
        """Stops everything, who needs a part before the part; safe to call twice and after a failed start.

        A process that does not heed SIGTERM within its time is killed; so is whatever it left behind.
        """
        if self._supervisord.running:
            running = {process.name for process in self.processes}
            try:
                for level in reversed(levels(self._parts)):
                    self._stop_level(running.intersection(level))
            except StackError:
                pass  # the supervisor is going down by itself: the sweep below has the last word
        self._supervisord.close()
        for process in self.members():
            process.kill()
        psutil.wait_procs(self.members(), timeout=5)

    def _stop_level(self, names: set[str]) -> None:
        going: set[str] = {name for name, state in self._watch.states().items() if name in names and not state.down}
        asked: set[str] = set()
        while going:
            states = self._watch.states()
            for name in sorted(going):
                if states[name].down:
                    going.remove(name)
                    self._on_event(Event(name, "stopped"))
                elif name not in asked and states[name].status in ("STARTING", "RUNNING", "BACKOFF"):
                    asked.add(name)
                    self._on_event(Event(name, "stopping"))
                    self._supervisord.call("stopProcess", name, False)
            time.sleep(POLL_S)
