"""Keep connections between requests without a session.

A SELECT or an INSERT leaves nothing in its connection: the settings of its own text end with it. So the next request
with the same database and settings may use the connection again, instead of one that is opened and configured for it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from stepstream.services.store.engine import Connection

LIMIT = 16
"""Connections to keep, of all configurations together."""


@dataclass(frozen=True)
class Configuration:
    """State of a connection for a request without a session."""

    reads_only: bool
    database: str | None
    """None: the engine's default."""
    settings: tuple[tuple[str, str], ...]


@dataclass
class Lease:
    """A connection for one request."""

    connection: Connection
    is_clean: bool = False
    """True: the request is done, and changed nothing of the connection's state."""


class IdleConnections:
    """Connections by configuration, the least recently used first; thread-safe."""

    def __init__(self, connect: Callable[[Configuration], Connection], limit: int = LIMIT) -> None:
        self._connect = connect
        self._limit = limit
        self._idle: list[tuple[Configuration, Connection]] = []
        self._epoch = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._idle)

    @contextmanager
    def use(self, configuration: Configuration) -> Iterator[Lease]:
        """Yield a connection with this configuration, which is closed afterwards unless it `is_clean`."""
        with self._lock:
            epoch, connection = self._epoch, self._take(configuration)
        lease = Lease(connection or self._connect(configuration))
        try:
            yield lease
        finally:
            self._give_back(configuration, lease, epoch)

    def clear(self) -> None:
        """Close idle connections, and those in use after their requests: a statement changed what they depend on."""
        with self._lock:
            self._epoch += 1
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def _take(self, configuration: Configuration) -> Connection | None:
        for at in range(len(self._idle) - 1, -1, -1):
            if self._idle[at][0] == configuration:
                return self._idle.pop(at)[1]
        return None

    def _give_back(self, configuration: Configuration, lease: Lease, epoch: int) -> None:
        unwanted: Connection | None = lease.connection
        with self._lock:
            if lease.is_clean and epoch == self._epoch:
                self._idle.append((configuration, lease.connection))
                unwanted = self._idle.pop(0)[1] if len(self._idle) > self._limit else None
        if unwanted is not None:
            unwanted.close()
