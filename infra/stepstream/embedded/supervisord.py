"""Configure, start, call and stop supervisord; calls go over a unix socket.

It runs through `lifeline`: when the stack's owner ends, even by kill -9, supervisord stops its processes in order.
"""

import getpass
import http.client
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import xmlrpc.client
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from stepstream.embedded.errors import StackError
from stepstream.embedded.processes import Process, start_order

# Linux allows 107 bytes for a unix socket's path, and supervisord appends ".PID" while it binds.
_LONGEST_SOCKET_PATH = 95
_LOG_BYTES = "10MB"
# Characters that begin a comment or end a line in supervisord's configuration and have no escape.
_UNESCAPABLE = re.compile(r"\s[;#]|[\r\n]")
_MIN_FREE_BYTES = 1_000_000
# A process that ends within _START_SECONDS counts as a failed start. supervisord retries it after 1, 2, 3… s and sets
# it to FATAL after _START_RETRIES retries. A process that lived longer restarts immediately.
_START_SECONDS = 10
_START_RETRIES = 3
# Exit status of a process that cannot use its settings (`core.process`); a restart would not help.
MISCONFIGURED = 2
_MODULE = "stepstream.embedded.lifeline"
_DEADLINE_S = 60.0
_STOP_S = 90.0
# Seconds from SIGTERM to SIGKILL; Kubernetes' default.
_STOP_WAIT_S = 30
# Variable with the process id of supervisord's owner, by which a later stack over the same folder finds the owner.
OWNER_VARIABLE = "STEPSTREAM_STACK_OWNER"


def configuration(processes: Sequence[Process], data: Path, socket: Path) -> str:
    """Return the text of supervisord's configuration. No process starts by itself; all inherit the environment.

    Priorities follow the levels of starting. supervisord stops the highest first, so each process stops before its
    prerequisites even without the stack.
    """
    # Without `user`, supervisord warns root at every start.
    user = ("user=root",) if os.geteuid() == 0 else ()
    lines = [
        "[supervisord]",
        "nodaemon=true",
        "silent=true",
        *user,
        f"logfile={_escape(data / 'logs' / 'supervisord.log')}",
        f"logfile_maxbytes={_LOG_BYTES}",
        "logfile_backups=1",
        f"pidfile={_escape(data / 'run' / 'supervisord.pid')}",
        f"childlogdir={_escape(data / 'logs')}",
        "[unix_http_server]",
        f"file={_escape(socket)}",
        "chmod=0700",
        "[rpcinterface:supervisor]",
        "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
    ]
    rank = {name: i for i, level in enumerate(start_order(processes)) for name in level}
    for process in processes:
        lines += [
            f"[program:{process.name}]",
            f"command={_escape(shlex.join(process.command))}",
            f"environment={_environment(process.environment)}",
            f"priority={rank[process.name]}",
            "autostart=false",
            "autorestart=unexpected",
            f"exitcodes={f'0,{MISCONFIGURED}' if process.ends else MISCONFIGURED}",
            f"startsecs={1 if process.ends else _START_SECONDS}",
            f"startretries={_START_RETRIES}",
            f"stopwaitsecs={_STOP_WAIT_S}",
            "killasgroup=true",
            "redirect_stderr=true",
            f"stdout_logfile={_escape(_escape(data / 'logs' / f'{process.name}.log'))}",  # supervisord expands it twice
            f"stdout_logfile_maxbytes={_LOG_BYTES}",
            "stdout_logfile_backups=2",
        ]
    return "\n".join(lines) + "\n"


def disk_is_full(data: Path) -> bool:
    """Return True if the disk of `data` is so full that it may have ended a process."""
    try:
        return shutil.disk_usage(data).free < _MIN_FREE_BYTES
    except OSError:
        return False


class Supervisord:
    """A supervisord that this process owns. Any thread may use `call`."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._proxy: Any = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def wait_for_predecessor(self) -> None:
        """Block while a supervisord of the same folder, whose owner was killed, stops its processes.

        Raises:
            StackError: its owner lives, so another stack runs over this folder; or it does not stop within 90 s.
        """
        try:
            process = psutil.Process(int((self._data / "run" / "supervisord.pid").read_text()))
            if _MODULE not in process.cmdline():
                return
            owner = int(process.environ().get(OWNER_VARIABLE, 0))
            if not psutil.pid_exists(owner):
                process.wait(_STOP_S)
                return
        except (OSError, ValueError, psutil.NoSuchProcess):
            return
        except (psutil.TimeoutExpired, psutil.AccessDenied):
            owner = process.pid
        raise StackError(
            f"a stack already runs over {self._data} (process {owner}): "
            "stop it, or set STEPSTREAM_PATHS_DATA to another folder"
        )

    def launch(self, processes: Sequence[Process], environment: Mapping[str, str]) -> None:
        """Start supervisord with none of its processes running; block until it answers.

        Raises:
            StackError: it does not answer within 60 s, or the data folder cannot be used.
        """
        from supervisor.xmlrpc import SupervisorTransport

        if _UNESCAPABLE.search(str(self._data)):
            raise StackError(
                f"supervisord's configuration cannot hold the path {str(self._data)!r} (line break, or ; or # after a "
                "space): set STEPSTREAM_PATHS_DATA"
            )

        run, logs = self._data / "run", self._data / "logs"
        socket = self._socket(run)
        file = run / "supervisord.conf"
        try:
            run.mkdir(parents=True, exist_ok=True)
            logs.mkdir(parents=True, exist_ok=True)
            file.write_text(configuration(processes, self._data, socket), encoding="utf-8")
        except OSError as error:
            raise StackError(f"cannot write to {self._data} ({error}): set STEPSTREAM_PATHS_DATA") from None
        with (logs / "supervisord.out").open("wb") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, "-c", str(file)],
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                env=dict(environment),
                start_new_session=True,  # only the owner gets Ctrl-C from the terminal
            )
        self._proxy = xmlrpc.client.ServerProxy(
            "http://127.0.0.1", transport=SupervisorTransport(None, None, f"unix://{socket}")
        )
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            try:
                self.call("getPID")
                return
            except StackError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    output = (logs / "supervisord.out").read_text(errors="replace").strip()
                    self.close()
                    raise StackError(f"supervisord did not start: {output or 'see supervisord.log'}") from None
                time.sleep(0.02)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call `supervisor.METHOD` and return its result.

        Raises:
            StackError: supervisord does not answer or rejects the call.
        """
        with self._lock:
            try:
                return getattr(self._proxy.supervisor, method)(*arguments)
            except xmlrpc.client.Fault as fault:
                raise StackError(f"supervisord: {method}: {fault.faultString}") from None
            except (OSError, http.client.HTTPException, xmlrpc.client.ProtocolError) as error:
                self._proxy("close")()
                reason = f"the disk of {self._data} is full: make room" if disk_is_full(self._data) else repr(error)
                raise StackError(f"supervisord does not answer: {reason}") from None

    @property
    def running(self) -> bool:
        """True while supervisord runs."""
        return self._process is not None and self._process.poll() is None

    def close(self, timeout: float = _STOP_S) -> None:
        """Close the pipe, so that supervisord stops its processes and ends; kill it after `timeout` seconds."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._proxy is not None:
            self._proxy("close")()
            self._proxy = None
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def _socket(self, run: Path) -> Path:
        path = run / "supervisor.sock"
        if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
            return path
        self._scratch = tempfile.TemporaryDirectory(prefix=f"stepstream-{getpass.getuser()}-")
        return Path(self._scratch.name) / "supervisor.sock"


def _escape(value: object) -> str:
    return str(value).replace("%", "%%")


def _environment(variables: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in sorted(variables.items()))
