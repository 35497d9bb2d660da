"""Runs a command that nobody trusts in a folder of its own, and stops it at its limits."""

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path

from stepstream.jobs.verifiers.base import Unavailable
from stepstream.jobs.verifiers.sandbox.launcher import STARTED
from stepstream.jobs.verifiers.sandbox.limits import Confinement, Ended, Limits, Run

_LAUNCHER = "stepstream.jobs.verifiers.sandbox.launcher"
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime")
_LOOK_S = 0.05
"""How often processes, memory and files are counted."""
_REPORT_BYTES = 65_536
_SAID_BYTES = 500
_MOST_FILES = 2_000
_PAGE = os.sysconf("SC_PAGE_SIZE")
REPORT = "STEPSTREAM_REPORT"
"""Variable that names the descriptor for the report."""


class SandboxError(Unavailable):
    """Nothing was run, for what was demanded of the sandbox cannot be had; the message says what to do."""


def run(
    files: Mapping[str, str],
    argv: Sequence[str],
    limits: Limits,
    confinement: Confinement,
    *,
    namespaces: bool = True,
) -> Run:
    """Runs `argv` in a new folder with these files; blocks until it ended or was stopped.

    Namespaces of its own are used where this machine lets us, unless `namespaces` is false; the filter of system calls
    is there in any case.

    Raises:
        SandboxError: it cannot be confined as demanded, or not be started.
    """
    if sys.platform != "linux":
        raise SandboxError("the sandbox needs Linux: run the job verify there")
    folder = Path(tempfile.mkdtemp(prefix="verify-")).resolve()
    try:
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8", errors="replace")
        return _Watched(folder, argv, limits, confinement, namespaces).run()
    finally:
        _remove(folder)


@cache
def _readable() -> list[str]:
    return [*_SYSTEM, sys.prefix, sys.base_prefix]


class _Watched:
    """One run."""

    def __init__(
        self, folder: Path, argv: Sequence[str], limits: Limits, confinement: Confinement, namespaces: bool
    ) -> None:
        self._folder, self._limits, self._confinement = folder, limits, confinement
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
            "readable": _readable(),
            **asdict(limits),
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-m", _LAUNCHER, json.dumps(order)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
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
        """Follows the process to its end."""
        began = time.monotonic()
        assert self._process.stdout is not None
        gathered = {
            self._process.stdout.fileno(): bytearray(),
            self._fault_end: bytearray(),
            self._report_end: bytearray(),
        }
        try:
            ended = self._follow(gathered, began)
        finally:
            self._kill()
            status = self._process.wait()
        _drain(self._fault_end, gathered[self._fault_end])  # a limit may be passed before the start was read
        output, fault, report = gathered.values()
        self._process.stdout.close()
        os.close(self._fault_end)
        os.close(self._report_end)
        if bytes(fault) != STARTED:
            said = fault.removeprefix(STARTED) or bytes(output[-_SAID_BYTES:]) or ended.encode()
            raise SandboxError(
                f"the code was not run: {said.decode(errors='replace').strip()}; allow user namespaces or seccomp, and "
                "Landlock, or lower verify.sandbox"
            )
        if ended == "exited" and (status < 0 or status > 128):
            status = status if status < 0 else 128 - status
            ended = "timeout" if -status == signal.SIGXCPU else "killed"
        text = bytes(output[: self._limits.output_bytes]).decode("utf-8", "replace")
        return Run(ended, status, text, bytes(report), time.monotonic() - began)

    def _follow(self, gathered: dict[int, bytearray], began: float) -> Ended:
        """Reads until the process has ended, or a limit is passed."""
        pidfd = os.pidfd_open(self._process.pid)
        with selectors.DefaultSelector() as selector:
            for descriptor in (*gathered, pidfd):
                selector.register(descriptor, selectors.EVENT_READ)
            try:
                next_look = began + _LOOK_S
                while True:
                    now = time.monotonic()
                    if now - began >= self._limits.wall_s:
                        return "timeout"
                    if now >= next_look:
                        next_look = now + _LOOK_S
                        if passed := self._passed():
                            return passed
                    until = min(next_look, began + self._limits.wall_s)
                    ready = {key.fd for key, _ in selector.select(max(0.0, until - now))}
                    for descriptor in ready - {pidfd}:
                        piece = os.read(descriptor, 65_536)
                        if piece:
                            gathered[descriptor] += piece
                        else:
                            selector.unregister(descriptor)
                    output, _, report = gathered.values()
                    if len(output) > self._limits.output_bytes or len(report) > _REPORT_BYTES:
                        return "output"
                    if ready == {pidfd}:  # ended, and nothing left to read
                        return "exited"
            finally:
                os.close(pidfd)

    def _passed(self) -> Ended | None:
        """The limit that all processes together have passed, if one."""
        most = self._limits.processes + 2  # the launcher and the first process of the namespace are ours
        processes, resident = _session(self._process.pid, most)
        if processes > most:
            return "processes"
        if resident > self._limits.memory_mb << 20:
            return "memory"
        return "disk" if _size(self._folder) > self._limits.file_mb << 20 else None

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _drain(pipe: int, gathered: bytearray) -> None:
    """Reads what is in a pipe now; whoever still holds its other end is not waited for."""
    os.set_blocking(pipe, False)
    with suppress(BlockingIOError):
        while piece := os.read(pipe, 65_536):
            gathered += piece


def _session(session: int, most: int) -> tuple[int, int]:
    """Processes of a session, and the bytes of memory that they hold; counts no further than one above `most`.

    The youngest first: while all processes are read, code that does nothing but fork makes thousands more.
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


def _remove(folder: Path) -> None:
    """Removes what was left, however the code has nested or locked it."""
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        for command in (("chmod", "-R", "u+rwX"), ("rm", "-rf")):
            subprocess.run([*command, "--", str(folder)], capture_output=True, check=False)


def _size(folder: Path) -> int:
    """Bytes of all files below a folder; more files than anybody needs count as too large."""
    total = files = 0
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    files += 1
                    if files > _MOST_FILES:
                        return 1 << 62
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total
