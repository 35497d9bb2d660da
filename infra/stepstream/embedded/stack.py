"""Start the stack's processes in order, restart one that crashes, and stop them all so that none is left running."""

import os
import signal
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import psutil

from stepstream.config import KafkaSettings, Settings, environment_of
from stepstream.embedded import install
from stepstream.embedded.addresses import resolve_addresses
from stepstream.embedded.errors import StackError
from stepstream.embedded.monitor import ProcessMonitor
from stepstream.embedded.ports import check_free
from stepstream.embedded.processes import Process, default_names, select_parts, stack_parts, start_order
from stepstream.embedded.ready import KafkaReady
from stepstream.embedded.startup import POLL_S, Event, OnEvent, Startup
from stepstream.embedded.supervisord import OWNER_VARIABLE, Supervisord

__all__ = ["Event", "OnEvent", "Stack", "ensure_broker"]

# Variable in the environment of every process of the stack and of their descendants, by which `members` finds them.
_ID_VARIABLE = "STEPSTREAM_STACK_ID"


def _ignore(_event: Event) -> None:
    pass


class Stack:
    """The selected processes over one data folder; a context manager whose exit stops them.

    Only `pid`, `kill` and `members` may be called from other threads.
    """

    def __init__(
        self,
        settings: Settings,
        processes: Collection[str] | None = None,
        on_event: OnEvent = _ignore,
        deferred: Collection[str] = (),
        tolerant: bool = False,
    ) -> None:
        """Select the processes; `start` starts them.

        Args:
            settings: any settings; the attribute `settings` has their addresses resolved.
            processes: names to run, `worker` for all workers; None: those of `default_names` and the deferred ones.
                The stack only waits for an external part.
            on_event: called with each event, in the thread that calls `start`, `poll` or `stop`.
            deferred: names that `start` leaves down until `start_process`.
            tolerant: True: a process that is not essential may fail, and is started again after growing pauses.

        Raises:
            StackError: a name is unknown.
        """
        self.settings = resolve_addresses(settings)
        parts = stack_parts(self.settings)
        if processes is None:
            processes = {*default_names(self.settings, parts), *deferred}
        self._parts = select_parts(parts, processes)
        self._deferred = frozenset(deferred)
        self._on_event = on_event
        self._id = uuid.uuid4().hex
        self._supervisord = Supervisord(self.settings.paths.data)
        essential = {part.name for part in self._parts if isinstance(part, Process) and part.essential}
        self._monitor = ProcessMonitor(
            self._supervisord, self.settings.paths.data / "logs", essential if tolerant else None
        )
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
        """Selected processes that are not external, in the order of `stack_parts`."""
        return [part for part in self._parts if isinstance(part, Process) and not part.external]

    @property
    def environment(self) -> dict[str, str]:
        """Environment of every process: this process's variables, with `settings` instead of its STEPSTREAM_ ones."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("STEPSTREAM_")}
        defaults = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        identity = {_ID_VARIABLE: self._id, OWNER_VARIABLE: str(os.getpid())}
        return defaults | inherited | environment_of(self.settings) | identity

    def start(self) -> None:
        """Start each part as soon as its prerequisites are ready; if one fails, stop all.

        Blocks until all are ready. Installs Kafka first if it is missing.

        Raises:
            StackError: a port is taken, a process fails, or a part is not ready within `stack.start_deadline_s`
                seconds in all. The one-time installation does not count.
        """
        self._supervisord.wait_for_predecessor()
        check_free(port for process in self.processes for port in process.ports)
        if any(process.name == "broker" for process in self.processes) and not install.installed(self.settings):
            install.install(self.settings, lambda line: self._on_event(Event("install", "starting", line)))
            self._on_event(Event("install", "ready"))
        try:
            self._supervisord.launch(self.processes, self.environment)
            Startup(self.settings, self._parts, self._deferred, self._monitor, self._on_event).run()
            self._monitor.restarted()
        except BaseException:
            self.stop()
            raise

    def poll(self) -> None:
        """Report restarts, failures and ends since the last call through `on_event`. Call it about once a second.

        Raises:
            StackError: a process failed for good or crashes repeatedly, or supervisord does not answer. A tolerant
                stack reports failures of processes that are not essential instead.
        """
        for name in self._monitor.restarted():
            self._on_event(Event(name, "restarted"))
        for name, description in self._monitor.retry():
            self._on_event(Event(name, "failed", description))
        ended = {state.name for state in self._monitor.states().values() if state.ended}
        for name in sorted(ended - self._ended):
            self._on_event(Event(name, "ended"))
        self._ended = ended

    @property
    def ended(self) -> frozenset[str]:
        """Processes that had ended with success at the last `poll`."""
        return frozenset(self._ended)

    def pid(self, name: str) -> int:
        """Return a process's id; 0 while it is down."""
        return int(self._supervisord.call("getProcessInfo", name)["pid"])

    def pids(self) -> dict[str, int]:
        """Return the ids of the processes that run, by name."""
        return {state.name: state.pid for state in self._monitor.states().values() if state.pid}

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a process but not to its children; return its id.

        Raises:
            StackError: it is not running.
        """
        pid = self.pid(name)
        if not pid:
            raise StackError(f"cannot send {number.name} to {name}: it is not running")
        os.kill(pid, number)
        return pid

    def wait_ready(self, name: str, *, after_pid: int = 0) -> int:
        """Block until a process is ready under an id other than `after_pid`; return its id.

        A process that has ended with success counts as ready; its id is 0.

        Raises:
            StackError: it is not ready within `stack.start_deadline_s` seconds, or an essential process failed.
        """
        process = next(process for process in self.processes if process.name == name)
        timeout_s = self.settings.stack.start_deadline_s
        deadline = time.monotonic() + timeout_s
        while True:
            state = self._monitor.check()[name]
            if state.ended or (state.pid and state.pid != after_pid and process.ready()):
                return state.pid
            if time.monotonic() > deadline:
                raise StackError(f"{name} is not ready after {timeout_s:g} s; {self._monitor.log_excerpt(name)}")
            time.sleep(POLL_S)

    def start_process(self, name: str) -> int:
        """Start a deferred or stopped process and block until it is ready; return its id."""
        self._supervisord.call("startProcess", name, False)
        self._monitor.record_start(name)
        return self.wait_ready(name)

    def stop_process(self, name: str) -> None:
        """Stop a process with SIGTERM and block until it is down. Does nothing if it is down."""
        self._stop_level({name})

    def restart(self, name: str) -> int:
        """Stop and start a process, and block until it is ready; return its new id."""
        self.stop_process(name)
        return self.start_process(name)

    def members(self) -> list[psutil.Process]:
        """Return every living process of this stack: the supervisor and all its descendants."""
        members = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_ID_VARIABLE) == self._id and process.status() != psutil.STATUS_ZOMBIE:
                    members.append(process)
            except psutil.Error:
                continue
        return members

    def stop(self) -> None:
        """Stop everything, each process before its prerequisites. Idempotent; also valid after a failed start.

        Kills a process that outlives its time after SIGTERM, and all descendants that are left.
        """
        if self._supervisord.running:
            running = {process.name for process in self.processes}
            try:
                for level in reversed(start_order(self._parts)):
                    self._stop_level(running.intersection(level))
            except StackError:
                pass  # supervisord is stopping by itself; `members` below finds the rest
        self._supervisord.close()
        for process in self.members():
            process.kill()
        psutil.wait_procs(self.members(), timeout=5)

    def _stop_level(self, names: set[str]) -> None:
        remaining = {name for name, state in self._monitor.states().items() if name in names and not state.down}
        signalled: set[str] = set()
        while remaining:
            states = self._monitor.states()
            for name in sorted(remaining):
                if states[name].down:
                    remaining.remove(name)
                    self._on_event(Event(name, "stopped"))
                elif name not in signalled and states[name].status in ("STARTING", "RUNNING", "BACKOFF"):
                    signalled.add(name)
                    self._on_event(Event(name, "stopping"))
                    self._supervisord.call("stopProcess", name, False)
            time.sleep(POLL_S)


@contextmanager
def ensure_broker(settings: Settings, on_line: Callable[[str], None]) -> Iterator[Settings]:
    """Yield settings with a reachable broker and registry, and start the embedded ones if no broker answers.

    It stops at exit only what it started.

    Raises:
        StackError: the embedded broker or registry does not start.
    """
    resolved = resolve_addresses(settings)
    if "broker" in resolved.stack.external or _broker_answers(resolved.kafka):
        yield resolved
        return
    on_line("no broker runs: starting the embedded one to read the log")
    with Stack(resolved, ["broker", "registry"]) as stack:
        yield stack.settings


def _broker_answers(kafka: KafkaSettings) -> bool:
    """Return True as soon as a broker lists its topics; False if none listens, or at the deadline.

    On a busy machine a broker that listens may answer late. A second one over its data could not start.
    """
    ready = KafkaReady(kafka)
    deadline = time.monotonic() + kafka.deadline_s
    while ready.is_listening() and time.monotonic() < deadline:
        if ready():
            return True
        time.sleep(POLL_S)
    return False
