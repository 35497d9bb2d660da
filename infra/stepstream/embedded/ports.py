"""Ports: told apart free from taken before anything is started, so that the message can name what to set."""

import errno
import random
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from stepstream.embedded.errors import StackError

FREE_PORTS = range(10_000, 32_000)
"""Where free ports are looked for: below those that Linux gives to outgoing connections, so that they stay free."""


@dataclass(frozen=True)
class Port:
    """A port that a process of ours will listen on, and the variable that moves it."""

    host: str
    port: int
    process: str
    variable: str


def is_free(host: str, port: int) -> bool:
    """Whether one could listen there now; a socket that is only waiting to be forgotten does not count."""
    return _fault(host, port) is None


def _fault(host: str, port: int) -> OSError | None:
    """Why one cannot listen there now."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error
    except OverflowError:  # counted up from one that is nearly the last
        return OSError(errno.EINVAL, "there are ports up to 65535")
    return None


def check_free(ports: Iterable[Port]) -> None:
    """Refuses ports that are taken, or that nobody could listen on.

    Raises:
        StackError: names each port, who wanted it, who has it, and the variable to set.
    """
    faults = []
    for port in ports:
        fault = _fault(port.host, port.port)
        if fault is None:
            continue
        if fault.errno != errno.EADDRINUSE:
            faults.append(
                f"{port.process} cannot listen on {port.host}, port {port.port} ({fault.strerror}): "
                f"set {port.variable}, or its host to an address of this machine"
            )
            continue
        owner = owner_of(port.port)
        faults.append(
            f"port {port.port} ({port.process}) is taken{f' by {owner}' if owner else ''}: "
            f"stop what uses it, or set {port.variable}"
        )
    if faults:
        raise StackError("\n".join(faults))


def owner_of(port: int) -> str:
    """The process that listens on a port, as `name (pid)`; empty where this user may not know."""
    import psutil

    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.pid and port in connection.laddr[1:2]:
                return f"{psutil.Process(connection.pid).name()} ({connection.pid})"
    except psutil.Error:
        pass
    return ""


def free_block(size: int, host: str = "127.0.0.1") -> int:
    """The first of `size` free ports in a row, from a place chosen at random."""
    for _ in range(1_000):
        base = random.randrange(FREE_PORTS.start, FREE_PORTS.stop - size)
        if all(is_free(host, base + i) for i in range(size)):
            return base
    raise StackError(f"no {size} free ports in a row between {FREE_PORTS.start} and {FREE_PORTS.stop}")
