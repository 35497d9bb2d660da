"""The embedded stack: starts its processes in order, watches them, stops them, and leaves nothing running."""

import os
import signal
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import psutil

from stepstream.config import Settings, environment_of
from stepstream.embedded import install
from stepstream.embedded.addresses import wire
from stepstream.embedded.errors import StackError
from stepstream.embedded.ports import check_free
from stepstream.embedded.processes import Action, Part, Process, levels, select, table
from stepstream.embedded.supervisord import Supervisord

# Carried by every process of a stack and by whatever they start, so that none can hide.
_MARK = "STEPSTREAM_STACK_ID"
_POLL_S = 0.05
# Restarts of one process within this many seconds that mean that it cannot be mended.
_RESTARTS, _RESTART_WINDOW_S = 6, 60.0


@dataclass(frozen=True)
class Event:
    """Something that a person may want to see: `name` is a process, an action, or `install`."""

    name: str
    state: Literal["starting", "ready", "restarted", "ended", "stopping", "stopped"]
    detail: str = ""


OnEvent = Callable[[Event], None]


def _ignore(_event: Event) -> None:
    pass


class Stack:
    """The chosen processes over one data folder.

    Use it as a context manager: leaving it stops everything. Not to be shared between threads, except `pid`,
    `kill` and `members`.
    """

    def __init__(
        self, settings: Settings, processes: Collection[str] | None = None, on_event: OnEvent = _ignore
    ) -> None:
        """Nothing runs yet.

        Args:
            settings: wired here, see `settings`.
            processes: names to run, `worker` for all workers; default: all. An external part is only waited for.
            on_event: called as things happen, in the calling thread of `start`, `poll` and `stop`.

        Raises:
            StackError: an unknown name.
        """
        self.settings = wire(settings)
        self._parts: list[Part] = select(table(self.settings), processes)
        self._on_event = on_event
        self._id = uuid.uuid4().hex
        self._supervisord = Supervisord(self.settings.paths.data)
        self._seen: dict[str, int] = {}
        self._restarts: dict[str, list[float]] = {}
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
        return defaults | kept | environment_of(self.settings) | {_MARK: self._id}

    def log_file(self, name: str) -> Path:
        """Where a process's output goes."""
        return self.settings.paths.data / "logs" / f"{name}.log"

    def start(self) -> None:
        """Starts everything, each part as soon as what it needs is ready; stops it all again if that fails.

        Raises:
            StackError: a port that is taken, a process that does not come up, an external part that does not
                answer, within `stack.start_deadline_s` seconds in all (the one-time install not counted).
        """
        check_free(port for process in self.processes for port in process.ports)
        if any(process.name == "broker" for process in self.processes) and not install.installed(self.settings):
            install.install(self.settings, lambda line: self._on_event(Event("install", "starting", line)))
            self._on_event(Event("install", "ready"))
        try:
            self._supervisord.launch(self.processes, self.environment)
            self._start_parts()
        except BaseException:
            self.stop()
            raise

    def _start_parts(self) -> None:
        deadline = time.monotonic() + self.settings.stack.start_deadline_s
        names = {part.name for part in self._parts}
        waiting = {part.name: part for part in self._parts}
        began: dict[str, float] = {}
        ready: set[str] = set()
        while len(ready) < len(names):
            for name, part in list(waiting.items()):
                if not ready.issuperset(names.intersection(part.after)):
                    continue
                del waiting[name]
                began[name] = time.monotonic()
                self._on_event(Event(name, "starting"))
                if isinstance(part, Action):
                    self._act(part)
                    self._tell_ready(name, began[name], ready)
                elif not part.external:
                    self._supervisord.call("startProcess", name, False)
            for part in self._parts:
                if isinstance(part, Process) and part.name in began and part.name not in ready and part.ready():
                    self._tell_ready(part.name, began[part.name], ready)
            self._check_given_up()
            if time.monotonic() > deadline:
                self._raise_late([part for part in self._parts if part.name in began and part.name not in ready])
            time.sleep(_POLL_S)
        for name, info in self._infos().items():
            self._seen[name] = info["start"]

    def _act(self, action: Action) -> None:
        try:
            action.run(self.settings)
        except Exception as error:
            raise StackError(f"{action.name}: {error}") from error

    def _tell_ready(self, name: str, began: float, ready: set[str]) -> None:
        ready.add(name)
        self._on_event(Event(name, "ready", f"{time.monotonic() - began:.1f} s"))

    def _raise_late(self, parts: list[Part]) -> None:
        lines = []
        for part in parts:
            assert isinstance(part, Process)
            where = f"{part.name} does not answer at {part.ready.address}"
            lines.append(
                f"{where}: it runs elsewhere, start it there or set its address"
                if part.external
                else f"{where}; {self._last_words(part.name)}"
            )
        raise StackError(f"not ready after {self.settings.stack.start_deadline_s:g} s:\n" + "\n".join(lines))

    def poll(self) -> None:
        """Looks at every process once; tells of restarts through `on_event`. Call it about once a second.

        Raises:
            StackError: one that was given up, or that crashes again and again, or the supervisor is gone.
        """
        for name, info in self._check_given_up().items():
            if info["statename"] == "EXITED":
                if name not in self._ended:
                    self._ended.add(name)
                    self._on_event(Event(name, "ended"))
                continue
            if not info["pid"] or info["start"] == self._seen.get(name):
                continue
            if name in self._seen:
                self._count_restart(name)
                self._on_event(Event(name, "restarted"))
            self._seen[name] = info["start"]

    @property
    def ended(self) -> frozenset[str]:
        """Processes whose work is done, as of the last `poll`."""
        return frozenset(self._ended)

    def _count_restart(self, name: str) -> None:
        now = time.monotonic()
        recent = [at for at in self._restarts.get(name, []) if now - at < _RESTART_WINDOW_S]
        self._restarts[name] = [*recent, now]
        if len(self._restarts[name]) > _RESTARTS:
            raise StackError(
                f"{name} crashed {len(self._restarts[name])} times in {_RESTART_WINDOW_S:g} s; {self._last_words(name)}"
            )

    def _check_given_up(self) -> dict[str, dict[str, Any]]:
        infos = self._infos()
        ends = {process.name for process in self.processes if process.ends}
        for name, info in infos.items():
            failed = info["statename"] == "EXITED" and not (name in ends and info["exitstatus"] == 0)
            if info["statename"] == "FATAL" or failed:
                raise StackError(f"{name} cannot be kept running; {self._last_words(name)}")
        return infos

    def _infos(self) -> dict[str, dict[str, Any]]:
        return {info["name"]: info for info in self._supervisord.call("getAllProcessInfo")}

    def _last_words(self, name: str) -> str:
        log = self.log_file(name)
        try:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return f"its log {log} ends: {lines[-1] if lines else '(empty)'}"

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

    def wait_ready(self, name: str, timeout: float = 60.0, after_pid: int = 0) -> int:
        """Blocks until a process is ready under another process id than `after_pid`; returns its id.

        Raises:
            StackError: it is not, after `timeout` seconds, or it was given up.
        """
        process = next(process for process in self.processes if process.name == name)
        deadline = time.monotonic() + timeout
        while True:
            self._check_given_up()
            pid = self.pid(name)
            if pid and pid != after_pid and process.ready():
                return pid
            if time.monotonic() > deadline:
                raise StackError(f"{name} is not ready after {timeout:g} s; {self._last_words(name)}")
            time.sleep(_POLL_S)

    def restart(self, name: str, timeout: float = 60.0) -> int:
        """Stops a process, starts it again and waits until it is ready; returns its new process id."""
        self._supervisord.call("stopProcess", name, True)
        self._supervisord.call("startProcess", name, False)
        return self.wait_ready(name, timeout)

    def stop_process(self, name: str) -> None:
        """Stops one process with SIGTERM and leaves it down; blocks until it is."""
        self._supervisord.call("stopProcess", name, True)

    def start_process(self, name: str, timeout: float = 60.0) -> int:
        """Starts one that `stop_process` stopped, and waits until it is ready; returns its process id."""
        self._supervisord.call("startProcess", name, False)
        return self.wait_ready(name, timeout)

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
            order = list(reversed(levels(self._parts)))
            running = {process.name for process in self.processes}
            try:
                for level in order:
                    self._stop_level([name for name in level if name in running])
            except StackError:
                pass  # the supervisor is going down by itself: the sweep below has the last word
        self._supervisord.close()
        for process in self.members():
            process.kill()
        psutil.wait_procs(self.members(), timeout=5)

    def _stop_level(self, names: list[str]) -> None:
        down = ("STOPPED", "EXITED", "FATAL")
        going = [name for name, info in self._infos().items() if name in names and info["statename"] not in down]
        for name in going:
            self._on_event(Event(name, "stopping"))
            self._supervisord.call("stopProcess", name, False)
        while going:
            infos = self._infos()
            for name in [name for name in going if infos[name]["statename"] in down]:
                going.remove(name)
                self._on_event(Event(name, "stopped"))
            if going:
                time.sleep(_POLL_S)
