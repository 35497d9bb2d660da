"""supervisord, the well-kept supervisor: its configuration, its life, and calls to it over a unix socket.

It is run through `lifeline`: when the stack's owner ends, however it ends, everything is stopped in order.
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
from stepstream.embedded.processes import Process, levels

# Linux allows 107 bytes for a unix socket's path, and supervisord adds ".PID" for a moment.
_LONGEST_SOCKET_PATH = 95
_LOG_BYTES = "10MB"
# What begins a comment, or ends a line, in its configuration, and cannot be escaped.
_UNSPEAKABLE = re.compile(r"\s[;#]|[\r\n]")
_FULL_BYTES = 1_000_000
# A process that lives shorter than this after its start counts as a failed start: it is tried again after
# 1, 2, 3… seconds, and given up ("FATAL") after this many tries. One that lived longer starts again at once.
_START_SECONDS = 10
_START_RETRIES = 3
# Exit status of a process that cannot use its settings (`topics.process`): starting it again is no help.
MISCONFIGURED = 2
_MODULE = "stepstream.embedded.lifeline"
_DEADLINE_S = 60.0
_STOP_S = 90.0
# From SIGTERM to SIGKILL, as long as Kubernetes gives unless told otherwise.
_STOP_WAIT_S = 30
# The variable that tells supervisord's owner, for whoever finds it running.
OWNER = "STEPSTREAM_STACK_OWNER"


def configuration(processes: Sequence[Process], data: Path, socket: Path) -> str:
    """The text of supervisord's configuration. Nothing starts by itself; the environment is inherited.

    Stopping goes by priority, highest first: who needs a part is stopped before it, also without the stack.
    """
    # Without `user`, supervisord warns a person who is root at every start.
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
    rank = {name: i for i, level in enumerate(levels(processes)) for name in level}
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
            f"stdout_logfile={_escape(_escape(data / 'logs' / f'{process.name}.log'))}",  # it is expanded twice
            f"stdout_logfile_maxbytes={_LOG_BYTES}",
            "stdout_logfile_backups=2",
        ]
    return "\n".join(lines) + "\n"


def disk_is_full(data: Path) -> bool:
    """Whether a process that ended over this folder may have ended of it."""
    try:
        return shutil.disk_usage(data).free < _FULL_BYTES
    except OSError:
        return False


class Supervisord:
    """A running supervisord, started by `launch` and owned by this process. Calls may come from any thread."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._proxy: Any = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def wait_for_predecessor(self) -> None:
        """Lets a supervisord of the same folder, whose owner was killed, finish stopping what it had.

        Raises:
            StackError: its owner lives: another stack runs over this folder; or it does not finish.
        """
        try:
            process = psutil.Process(int((self._data / "run" / "supervisord.pid").read_text()))
            if _MODULE not in process.cmdline():
                return
            owner = int(process.environ().get(OWNER, 0))
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
        """Starts it, without any process.

        Raises:
            StackError: it does not answer within 30 s, or the data folder cannot be used.
        """
        from supervisor.xmlrpc import SupervisorTransport

        if _UNSPEAKABLE.search(str(self._data)):
            raise StackError(f"supervisord cannot be told of {str(self._data)!r}: set STEPSTREAM_PATHS_DATA")

        run, logs = self._data / "run", self._data / "logs"
        socket = self._socket(run)
        file = run / "supervisord.conf"
        try:
            run.mkdir(parents=True, exist_ok=True)
            logs.mkdir(parents=True, exist_ok=True)
            file.write_text(configuration(processes, self._data, socket), encoding="utf-8")
        except OSError as error:
            raise StackError(f"cannot keep data in {self._data} ({error}): set STEPSTREAM_PATHS_DATA") from None
        with (logs / "supervisord.out").open("wb") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, "-c", str(file)],
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                env=dict(environment),
                start_new_session=True,  # a Ctrl-C at the terminal is for the owner alone
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
                    said = (logs / "supervisord.out").read_text(errors="replace").strip()
                    self.close()
                    raise StackError(f"supervisord did not start: {said or 'see supervisord.log'}") from None
                time.sleep(0.02)

    def call(self, method: str, *arguments: Any) -> Any:
        """One call of `supervisor.METHOD`.

        Raises:
            StackError: supervisord is gone, or refuses.
        """
        with self._lock:
            try:
                return getattr(self._proxy.supervisor, method)(*arguments)
            except xmlrpc.client.Fault as fault:
                raise StackError(f"supervisord: {method}: {fault.faultString}") from None
            except (OSError, http.client.HTTPException, xmlrpc.client.ProtocolError) as error:
                self._proxy("close")()
                why = f"the disk of {self._data} is full: make room" if disk_is_full(self._data) else repr(error)
                raise StackError(f"supervisord does not answer: {why}") from None

    @property
    def running(self) -> bool:
        """Whether it lives."""
        return self._process is not None and self._process.poll() is None

    def close(self, timeout: float = _STOP_S) -> None:
        """Closes the pipe, upon which it stops whatever still runs, in order; kills it after `timeout` seconds."""
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
