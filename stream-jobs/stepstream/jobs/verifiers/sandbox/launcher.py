"""The process that confines itself and then becomes the code that nobody trusts: `python -I -m …launcher ORDER`.

ORDER is JSON: `argv`, `environment`, `folder`, `fault` (a descriptor), `confinement`, `namespaces`, `readable`, and the
limits. It ends with the status of what it ran. On `fault` it says `STARTED` when it is confined, just before it runs
the code, and the reason where it cannot; the descriptor is closed when the code begins, so that nothing that the code
does can be taken for it. Only the standard library, and as little of it as possible: it starts once for each case.

    this process ── reads the order, sets limits, enters new namespaces where it may
      └─ the first process of a new process namespace: waits; when it goes, all go
           └─ drops privileges, locks itself into its folder, filters its calls, and becomes `argv`
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
_SPARE = 16
"""Processes above the limit, so that passing it shows, and threads."""

_NEW_USER, _NEW_NET, _NEW_PID, _NEW_IPC = 0x10000000, 0x40000000, 0x20000000, 0x08000000
_SET_PDEATHSIG, _SET_SECUREBITS, _CAPBSET_DROP = 1, 28, 24
_NO_ROOT_LOCKED = 0b1111
_CAPABILITY_VERSION = 0x20080522
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def main() -> NoReturn:
    """Never returns: becomes the code, or ends."""
    order = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.set_inheritable(order["fault"], False)
    os.chdir(order["folder"])
    _limit(order)
    if not (order["namespaces"] and _enter_namespaces(libc)):
        _become(libc, order, own_processes=False, own_network=False)
    first = os.fork()
    if first == 0:
        libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        child = os.fork()
        if child == 0:
            _become(libc, order, own_processes=True, own_network=True)
        _follow(child, order)
    _follow(first, order)


def _limit(order: dict[str, Any]) -> None:
    megabyte = 1 << 20
    # At the first limit a signal that tells of it, at the second the end.
    resource.setrlimit(resource.RLIMIT_CPU, (order["cpu_s"], order["cpu_s"] + 1))
    for kind, most in (
        (resource.RLIMIT_FSIZE, order["file_mb"] * megabyte),
        (resource.RLIMIT_NOFILE, order["open_files"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def _enter_namespaces(libc: ctypes.CDLL) -> bool:
    """Leaves network and processes behind; False where this machine does not let us."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_USER | _NEW_NET | _NEW_PID | _NEW_IPC) != 0:
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError:
        pass  # the identity stays unmapped: less is allowed, nothing more
    return True


def _become(libc: ctypes.CDLL, order: dict[str, Any], *, own_processes: bool, own_network: bool) -> NoReturn:
    """Locks this process in and replaces it with what it is to run."""
    confinement = order["confinement"]
    # Counted are this user's processes and threads: in this namespace, or everywhere. Who watches stops it before.
    most = order["processes"] + _SPARE + (0 if own_processes else _threads_of_user())
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    resource.setrlimit(resource.RLIMIT_AS, (order["memory_mb"] << 20,) * 2)
    lacking = []
    try:
        _drop_privileges(libc)
        readable = [Path(path) for path in (*order["readable"], *_DEVICES)]
        landlock.install(readable, [Path(order["folder"]), Path("/dev/null")])
    except OSError as error:
        if confinement == "strict":
            lacking.append(f"its files cannot be shut in ({error})")
    try:
        seccomp.install(own_processes=own_processes)
    except OSError as error:
        if confinement != "none" and not own_network:
            lacking.append(f"its network cannot be shut off ({error}, and no namespace of its own)")
    if lacking:
        _fail(order, "; ".join(lacking))
    os.write(order["fault"], STARTED)
    try:
        os.execve(order["argv"][0], order["argv"], order["environment"])
    except OSError as error:
        _fail(order, f"{order['argv'][0]} cannot be started: {error}")


def _fail(order: dict[str, Any], reason: str) -> NoReturn:
    os.write(order["fault"], reason.encode())
    os._exit(1)


def _drop_privileges(libc: ctypes.CDLL) -> None:
    """No capabilities, now and after `exec`, whoever it runs as."""
    libc.prctl(_SET_SECUREBITS, _NO_ROOT_LOCKED, 0, 0, 0)
    for capability in range(64):
        libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    header, none = struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(24)
    if libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(none)) != 0:
        raise OSError(ctypes.get_errno(), "privileges cannot be dropped")


def _threads_of_user() -> int:
    """Threads that this user runs anywhere: what the limit of processes counts beside ours."""
    found, user = 0, os.getuid()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == user:
                    found += len(os.listdir(f"/proc/{entry.name}/task"))
            except OSError:
                continue
    return found


def _follow(child: int, order: dict[str, Any]) -> NoReturn:
    """Ends as a child ends; others that end meanwhile are buried."""
    os.close(order["fault"])
    ended = status = 0
    while ended != child:
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
