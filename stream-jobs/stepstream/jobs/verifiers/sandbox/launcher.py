"""Confine this process, and then replace it with untrusted code: `python -I -m …launcher ORDER`.

ORDER is JSON: `argv`, `environment`, `folder`, `fault` (a descriptor), `confinement`, `namespaces`, `group` (file by
which to enter a control group, or null), `readable`, and the limits. The process exits with the status of the code. It
writes `STARTED` to `fault` once it is confined, just before the code runs, or the reason if confinement fails. The
descriptor closes when the code starts, so the code cannot write to it. The launcher uses only a little of the standard
library, because it starts once for each case.

    this process ── reads the order, sets limits, enters new namespaces if the kernel allows them
      └─ first process of a new process namespace: waits; when it exits, all others are killed
           └─ drops privileges, locks itself into its folder, filters its system calls, and becomes `argv`
"""

import ctypes
import json
import os
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Any, NoReturn

from stepstream.jobs.verifiers.sandbox import landlock, seccomp

STARTED = b"\x06"
SPARE_PROCESSES = 16
"""Processes above the limit, so that exceeding it is detected, and threads."""

_NEW_USER, _NEW_NET, _NEW_PID, _NEW_IPC = 0x10000000, 0x40000000, 0x20000000, 0x08000000
_SET_PDEATHSIG, _SET_SECUREBITS, _CAPBSET_DROP = 1, 28, 24
_NO_ROOT_LOCKED = 0b1111
_CAPABILITY_VERSION = 0x20080522
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def main() -> NoReturn:
    """Confine this process and run the code; never return."""
    order = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.set_inheritable(order["fault"], False)
    os.chdir(order["folder"])
    _set_limits(order)
    if order["group"] is not None:
        Path(order["group"]).write_text("0")
    if not (order["namespaces"] and _enter_namespaces(libc)):
        _run_confined(libc, order, own_processes=False, own_network=False)
    first = os.fork()
    if first == 0:
        libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        child = os.fork()
        if child == 0:
            _run_confined(libc, order, own_processes=True, own_network=True)
        _exit_like(child, order)
    _exit_like(first, order)


def _set_limits(order: dict[str, Any]) -> None:
    megabyte = 1 << 20
    # The soft limit sends SIGXCPU, the hard limit kills.
    resource.setrlimit(resource.RLIMIT_CPU, (order["cpu_s"], order["cpu_s"] + 1))
    for kind, most in (
        (resource.RLIMIT_FSIZE, order["file_mb"] * megabyte),
        (resource.RLIMIT_NOFILE, order["open_files"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def _enter_namespaces(libc: ctypes.CDLL) -> bool:
    """Enter new namespaces for network and processes; return False if the kernel denies them."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_USER | _NEW_NET | _NEW_PID | _NEW_IPC) != 0:
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError:
        pass  # the identity stays unmapped, which only removes permissions
    return True


def _run_confined(libc: ctypes.CDLL, order: dict[str, Any], *, own_processes: bool, own_network: bool) -> NoReturn:
    """Confine this process and replace it with the code."""
    confinement = order["confinement"]
    # The kernel counts this user's threads, in this namespace or everywhere. The parent stops the run earlier.
    most = order["processes"] + SPARE_PROCESSES + (0 if own_processes else _threads_of_user())
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    resource.setrlimit(resource.RLIMIT_AS, (order["memory_mb"] << 20,) * 2)
    faults = []
    try:
        _drop_privileges(libc)
        readable = [Path(path) for path in (*order["readable"], *_DEVICES)]
        landlock.install(readable, [Path(order["folder"]), Path("/dev/null")])
    except OSError as error:
        if confinement == "strict":
            faults.append(f"its files cannot be confined ({error})")
    try:
        seccomp.install(own_processes=own_processes)
    except OSError as error:
        if confinement != "none" and not own_network:
            faults.append(f"its network cannot be blocked ({error}, and no network namespace)")
    if faults:
        _fail(order, "; ".join(faults))
    os.write(order["fault"], STARTED)
    try:
        os.execve(order["argv"][0], order["argv"], order["environment"])
    except OSError as error:
        _fail(order, f"{order['argv'][0]} cannot be started: {error}")


def _fail(order: dict[str, Any], reason: str) -> NoReturn:
    os.write(order["fault"], reason.encode())
    os._exit(1)


def _drop_privileges(libc: ctypes.CDLL) -> None:
    """Drop all capabilities, now and after `exec`, for any user."""
    libc.prctl(_SET_SECUREBITS, _NO_ROOT_LOCKED, 0, 0, 0)
    for capability in range(64):
        libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    header, none = struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(24)
    if libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(none)) != 0:
        raise OSError(ctypes.get_errno(), "privileges cannot be dropped")


def _threads_of_user() -> int:
    """Count the threads of this user on the machine: the process limit includes them."""
    threads, user = 0, os.getuid()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == user:
                    threads += len(os.listdir(f"/proc/{entry.name}/task"))
            except OSError:
                continue
    return threads


def _exit_like(child: int, order: dict[str, Any]) -> NoReturn:
    """Exit with the status of a child; reap others meanwhile."""
    os.close(order["fault"])
    ended = status = 0
    while ended != child:
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
