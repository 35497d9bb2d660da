"""Run several gateway processes on one port: start each, start a dead one again, and stop all.

The parent opens the listening socket and serves nothing itself. The processes accept from the same socket, so a
connection that waits there is served even if a process dies. Each has a spool and metrics of its own, and all share
the folder of step indices and saved responses.

A child reads its standard input until its parent's death closes it, and then stops as after SIGTERM.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from stepstream.config import Settings
from stepstream.core.process import Fatal, Stop
from stepstream.services.listen import listen

log = logging.getLogger(__name__)

MODULE = "stepstream.services.gateway"
POLL_S = 0.2
RESTART_S = 1.0
"""Least time between two starts of a process."""


@dataclass(frozen=True, slots=True)
class ChildArguments:
    """The command line of a child."""

    number: int
    """From 0."""
    descriptor: int
    """Of the inherited listening socket."""

    @classmethod
    def parse(cls, arguments: list[str]) -> "ChildArguments | None":
        """Return what `words` wrote; None: this process has no parent that started it so."""
        return cls(int(arguments[0]), int(arguments[1])) if arguments else None

    def words(self) -> list[str]:
        """Return the arguments as words."""
        return [str(self.number), str(self.descriptor)]

    def sockets(self, settings: Settings) -> list[socket.socket]:
        """Return the shared socket, and one of the process's own for its metrics."""
        own = listen(settings.gateway.host, settings.gateway.metrics_port + self.number, "gateway")
        return [socket.socket(fileno=self.descriptor), own]


class _Child:
    def __init__(self, number: int, shared: socket.socket) -> None:
        self._number = number
        self._shared = shared
        self._started = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def keep_alive(self) -> None:
        """Start the process if it does not run, at most once in `RESTART_S`."""
        if self.process is not None and (code := self.process.poll()) is not None:
            log.error("gateway process %d ended with status %d; it is started again", self._number, code)
            self._release()
        if self.process is None and time.monotonic() - self._started >= RESTART_S:
            self._started = time.monotonic()
            descriptor = self._shared.fileno()
            words = ChildArguments(self._number, descriptor).words()
            self.process = subprocess.Popen(
                [sys.executable, "-m", MODULE, *words], stdin=subprocess.PIPE, pass_fds=[descriptor]
            )

    def request_stop(self) -> None:
        """Send SIGTERM, if it runs."""
        if self.process is not None:
            self.process.terminate()

    def wait(self, deadline: float) -> int:
        """Return its exit status; kill it at `deadline` of `time.monotonic`."""
        if self.process is None:
            return 0
        try:
            return self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self._release()

    def _release(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
        self.process = None


def run_processes(settings: Settings, stop: Stop) -> None:
    """Run `gateway.processes` processes until `stop`.

    Raises:
        Fatal: the port is taken, or a process lost events at its end.
    """
    gateway = settings.gateway
    shared = listen(gateway.host, gateway.port, "gateway")
    children = [_Child(number, shared) for number in range(gateway.processes)]
    last = gateway.metrics_port + gateway.processes - 1
    log.info("%d processes listen on http://%s:%d", gateway.processes, *shared.getsockname()[:2])
    log.info("their metrics are at the ports %d to %d", gateway.metrics_port, last)
    while not stop:
        for child in children:
            child.keep_alive()
        stop.wait(POLL_S)
    shared.close()
    for child in children:
        child.request_stop()
    # Twice the time to finish calls and deliver events, as one process takes at most, and some to end.
    deadline = time.monotonic() + 2 * gateway.shutdown_s + 5.0
    # A process that had not begun to serve ends by the signal itself.
    clean = 0, -signal.SIGTERM
    failed = [number for number, child in enumerate(children) if child.wait(deadline) not in clean]
    if failed:
        raise Fatal(f"gateway processes {failed} did not end cleanly: see their last lines above")


def stop_with_parent() -> None:
    """Let this process stop when its parent has closed its standard input, as by its death."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()
