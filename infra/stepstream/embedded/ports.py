"""Check ports before anything starts, so that the error can name the process that holds one and the variable to set."""

import errno
import random
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from stepstream.embedded.errors import StackError

FREE_PORTS = range(10_000, 32_000)
"""Range of the search for free ports: below the ports that Linux assigns to outgoing connections."""


@dataclass(frozen=True)
class Port:
    """A port that a process of the stack will listen on, and the variable that changes it."""

    host: str
    port: int
    process: str
    variable: str


def is_free(host: str, port: int) -> bool:
    """Return True if a server could listen there now; a socket in TIME_WAIT does not count."""
    return _bind_error(host, port) is None


def check_free(ports: Iterable[Port]) -> None:
    """Check that a server could listen on each of the ports.

    Raises:
        StackError: some are taken or unusable. The message names each port, its process, the process that holds it
            and the variable to set.
    """
    faults = []
    for port in ports:
        error = _bind_error(port.host, port.port)
        if error is None:
            continue
        if error.errno != errno.EADDRINUSE:
            faults.append(
                f"{port.process} cannot listen on {port.host}, port {port.port} ({error.strerror}): "
                f"set {port.variable}, or its host to an address of this machine"
            )
            continue
        owner = owner_of(port.port)
        faults.append(
            f"port {port.port} ({port.process}) is taken{f' by {owner}' if owner else ''}: "
            f"stop the process that uses it, or set {port.variable}"
        )
    if faults:
        raise StackError("\n".join(faults))


def _bind_error(host: str, port: int) -> OSError | None:
    """Return the error of listening there; None if it works."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error
    except OverflowError:  # a port counted up beyond 65535
        return OSError(errno.EINVAL, "ports end at 65535")
    return None


def owner_of(port: int) -> str:
    """Return the process that listens on a port, as `name (pid)`; empty if this user may not see it."""
    import psutil

    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.pid and port in connection.laddr[1:2]:
                return f"{psutil.Process(connection.pid).name()} ({connection.pid})"
    except psutil.Error:
        pass
    return ""


def free_block(size: int, host: str = "127.0.0.1") -> int:
    """Return the first of `size` consecutive free ports, at a random place in `FREE_PORTS`.

    Raises:
        StackError: there is no such block.
    """
    for _ in range(1_000):
        base = random.randrange(FREE_PORTS.start, FREE_PORTS.stop - size)
        if all(is_free(host, base + i) for i in range(size)):
            return base
    raise StackError(f"no {size} consecutive free ports between {FREE_PORTS.start} and {FREE_PORTS.stop}: free some")
