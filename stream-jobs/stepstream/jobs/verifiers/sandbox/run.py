"""Run an untrusted command in a folder of its own, and stop it at its limits."""

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from stepstream.jobs.verifiers.base import Unavailable
from stepstream.jobs.verifiers.sandbox.cgroup import process_limit
from stepstream.jobs.verifiers.sandbox.launcher import SPARE_PROCESSES, STARTED
from stepstream.jobs.verifiers.sandbox.limits import Confinement, Ended, Limits, Run

_LAUNCHER = "stepstream.jobs.verifiers.sandbox.launcher"
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime")
_CHECK_INTERVAL_S = 0.05
"""Seconds between two checks of processes, memory and files."""
_REPORT_BYTES = 65_536
_MAX_FAULT_BYTES = 500
_MAX_FILES = 2_000
_PAGE = os.sysconf("SC_PAGE_SIZE")
REPORT = "STEPSTREAM_REPORT"
"""Environment variable with the number of the report descriptor."""


class SandboxError(Unavailable):
    """The sandbox lacks required isolation, and no code ran; the message gives the remedy."""


@dataclass(frozen=True, slots=True)
class Channel:
    """Descriptors that connect a run with another one."""

    stdin: int | None = None
    """Its standard input; None: empty."""
    stdout: int | None = None
    """Its standard output; None: gathered in `Run.output`, with the error output."""
    stop: int | None = None
    """An event descriptor: the run is killed when it becomes readable."""

    def close(self) -> None:
        """Close input and output."""
        for descriptor in (self.stdin, self.stdout):
            if descriptor is not None:
                os.close(descriptor)


NO_CHANNEL = Channel()


def run(
    files: Mapping[str, str],
    argv: Sequence[str],
    limits: Limits,
    confinement: Confinement,
    *,
    namespaces: bool = True,
    channel: Channel = NO_CHANNEL,
) -> Run:
    """Run `argv` in a new folder with these files; blocks until it ends or is stopped.

    It gets its own namespaces if the kernel allows them and `namespaces` is true. System calls are filtered in any
    case. Closes the descriptors of `channel.stdin` and `channel.stdout`.

    Raises:
        SandboxError: it cannot be confined as required, or not be started.
    """
    folder = Path(tempfile.mkdtemp(prefix="verify-")).resolve()
    with process_limit(limits.processes + SPARE_PROCESSES) as group, _removing(folder):
        try:
            if sys.platform != "linux":
                raise SandboxError("the sandbox needs Linux: run the job verify there")
            for file, text in files.items():
                (folder / file).write_text(text, encoding="utf-8", errors="replace")
            process = _SandboxProcess(folder, argv, limits, confinement, namespaces, channel, group)
        finally:
            channel.close()
        return process.run()


@cache
def _readable() -> list[str]:
    return [*_SYSTEM, sys.prefix, sys.base_prefix]


class _SandboxProcess:
    """One run."""

    def __init__(
        self,
        folder: Path,
        argv: Sequence[str],
        limits: Limits,
        confinement: Confinement,
        namespaces: bool,
        channel: Channel,
        group: Path | None,
    ) -> None:
        self._folder, self._limits, self._stop = folder, limits, channel.stop
        self._fault_end, fault = os.pipe()
        self._report_end, report = os.pipe()
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            REPORT: str(report),
        }
        order = {
            "argv": list(argv),
            "environment": environment,
            "folder": str(folder),
            "fault": fault,
            "confinement": confinement,
            "namespaces": namespaces,
            "group": None if group is None else str(group),
            "readable": _readable(),
            **asdict(limits),
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-m", _LAUNCHER, json.dumps(order)],
                stdin=subprocess.DEVNULL if channel.stdin is None else channel.stdin,
                stdout=subprocess.PIPE if channel.stdout is None else channel.stdout,
                stderr=subprocess.STDOUT if channel.stdout is None else subprocess.PIPE,
                pass_fds=(fault, report),
                start_new_session=True,
                env={"PATH": "/usr/bin:/bin"},
            )
        except OSError as error:
            os.close(self._fault_end)
            os.close(self._report_end)
            raise SandboxError(f"the sandbox cannot start a process: {error}") from error
        finally:
            os.close(fault)
            os.close(report)

    def run(self) -> Run:
        """Watch the process to its end."""
        began = time.monotonic()
        text_end = self._process.stdout or self._process.stderr
        assert text_end is not None
        gathered = {
            text_end.fileno(): bytearray(),
            self._fault_end: bytearray(),
            self._report_end: bytearray(),
        }
        try:
            ended = self._follow(gathered, began)
        finally:
            self._kill()
            status = self._process.wait()
        _drain(self._fault_end, gathered[self._fault_end])  # the process may exceed a limit before the start was read
        output, fault, report = gathered.values()
        text_end.close()
        os.close(self._fault_end)
        os.close(self._report_end)
        if bytes(fault) != STARTED:
            reason = fault.removeprefix(STARTED) or bytes(output[-_MAX_FAULT_BYTES:]) or ended.encode()
            raise SandboxError(
                f"the code was not run: {reason.decode(errors='replace').strip()}; allow user namespaces or seccomp, "
                "and Landlock, or lower verify.sandbox"
            )
        if ended == "exited" and (status < 0 or status > 128):
            status = status if status < 0 else 128 - status
            ended = "timeout" if -status == signal.SIGXCPU else "killed"
        text = bytes(output[: self._limits.output_bytes]).decode("utf-8", "replace")
        return Run(ended, status, text, bytes(report), time.monotonic() - began)

    def _follow(self, gathered: dict[int, bytearray], began: float) -> Ended:
        """Read its output until it ends or exceeds a limit."""
        pidfd = os.pidfd_open(self._process.pid)
        with selectors.DefaultSelector() as selector:
            for descriptor in (*gathered, pidfd, *([] if self._stop is None else [self._stop])):
                selector.register(descriptor, selectors.EVENT_READ)
            try:
                next_look = began + _CHECK_INTERVAL_S
                while True:
                    now = time.monotonic()
                    if now - began >= self._limits.wall_s:
                        return "timeout"
                    if now >= next_look:
                        next_look = now + _CHECK_INTERVAL_S
                        if passed := self._passed():
                            return passed
                    until = min(next_look, began + self._limits.wall_s)
                    ready = {key.fd for key, _ in selector.select(max(0.0, until - now))}
                    if self._stop in ready:
                        return "stopped"
                    for descriptor in ready - {pidfd}:
                        piece = os.read(descriptor, 65_536)
                        if piece:
                            gathered[descriptor] += piece
                        else:
                            selector.unregister(descriptor)
                    output, _, report = gathered.values()
                    if len(output) > self._limits.output_bytes or len(report) > _REPORT_BYTES:
                        return "output"
                    if ready == {pidfd}:  # ended, and its output is read
                        return "exited"
            finally:
                os.close(pidfd)

    def _passed(self) -> Ended | None:
        """Return the limit that all processes together exceed; None: none."""
        most = self._limits.processes + 2  # plus the launcher and the first process of the namespace
        processes, resident = _measure_session(self._process.pid, most)
        if processes > most:
            return "processes"
        if resident > self._limits.memory_mb << 20:
            return "memory"
        return "disk" if _folder_bytes(self._folder) > self._limits.file_mb << 20 else None

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _drain(pipe: int, gathered: bytearray) -> None:
    """Read the bytes that are in a pipe now, without waiting for its writers."""
    os.set_blocking(pipe, False)
    with suppress(BlockingIOError):
        while piece := os.read(pipe, 65_536):
            gathered += piece


def _measure_session(session: int, most: int) -> tuple[int, int]:
    """Return the number of processes of a session and their resident bytes; stop counting one above `most`.

    Newest processes first: code that only forks makes thousands more during the count.
    """
    processes = resident = 0
    for name in reversed(os.listdir("/proc")):
        if processes > most:
            break
        if not name.isdigit():
            continue
        try:
            stat = Path(f"/proc/{name}/stat").read_bytes()
        except OSError:
            continue
        # After the name, which may hold anything: state, parent, group, session … and, 19 on, resident pages.
        fields = stat[stat.rfind(b")") + 2 :].split()
        if int(fields[3]) == session:
            processes += 1
            resident += int(fields[21]) * _PAGE
    return processes, resident


@contextmanager
def _removing(folder: Path) -> Iterator[None]:
    """Remove a folder at exit, even if the code nested it deeply or removed permissions."""
    try:
        yield
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        for command in (("chmod", "-R", "u+rwX"), ("rm", "-rf")):
            subprocess.run([*command, "--", str(folder)], capture_output=True, check=False)


def _folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder; too many files count as too large."""
    total = files = 0
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    files += 1
                    if files > _MAX_FILES:
                        return 1 << 62
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total
