"""Bound the connections of one HTTP server: their number, their memory and their deadlines.

`ConnectionTable` knows every connection of a process. One timer looks at all of them; a timer per request would cost
more than the request's parsing.
"""

import asyncio
import json
import resource
from http import HTTPStatus
from typing import Protocol

from stepstream.config import HttpSettings

SWEEP_S = 0.5
"""Interval of checks for passed deadlines."""
RESERVED_FILES = 256
"""Open files that connections must leave to logs, Kafka and upstreams."""


class Connection(Protocol):
    """Interface of a connection in the table."""

    def expire(self, now: float) -> None:
        """Answer or close if a deadline has passed; `now`: seconds of the loop's clock."""
        ...

    def cut(self) -> None:
        """Close at once."""
        ...


class ConnectionTable:
    """All connections of one process, and the bytes of requests that they hold."""

    def __init__(self, limits: HttpSettings) -> None:
        self.limits = limits
        self.max_connections = min(limits.connections, max(_open_files() - RESERVED_FILES, 1))
        self._all: set[Connection] = set()
        self._unused: dict[Connection, None] = {}
        """Connections without a complete head so far, oldest first."""
        self._idle: dict[Connection, None] = {}
        """Connections between two requests, longest idle first."""
        self._held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: Connection) -> bool:
        """Add a connection; return False if all others are busy with requests and their number is at its limit.

        A connection without a request makes room for a new one, so that nobody can hold the server with silence.
        """
        if len(self._all) >= self.max_connections:
            waiting = self._unused or self._idle
            if not waiting:
                return False
            victim = next(iter(waiting))
            self.remove(victim)
            victim.cut()
        self._all.add(connection)
        self._unused[connection] = None
        if self._timer is None:
            self._sweep()
        return True

    def remove(self, connection: Connection) -> None:
        """Forget a connection."""
        self._all.discard(connection)
        self.use(connection)

    def use(self, connection: Connection) -> None:
        """Note that a request's head is complete."""
        self._unused.pop(connection, None)
        self._idle.pop(connection, None)

    def rest(self, connection: Connection) -> None:
        """Note that a connection waits for its next request."""
        if connection in self._all:
            self._idle[connection] = None

    def hold(self, size: int) -> bool:
        """Count bytes of a request's body; return False, and count nothing, if all bodies together exceed the limit."""
        if self._held_bytes + size > self.limits.bodies_mb * 1_048_576:
            return False
        self._held_bytes += size
        return True

    def release(self, size: int) -> None:
        """Take bytes back that `hold` counted."""
        self._held_bytes -= size

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._all):
            connection.expire(now)
        limits = self.limits
        interval = min(SWEEP_S, *(each / 2 for each in (limits.header_s, limits.body_s, limits.write_s, limits.idle_s)))
        self._timer = loop.call_later(interval, self._sweep) if self._all else None


def refusal(status: int, message: str) -> bytes:
    """Return a response that ends its connection; the body has the form that OpenAI's clients read."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": None}}).encode()
    return b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (
        status,
        HTTPStatus(status).phrase.encode(),
        len(body),
        body,
    )


def _open_files() -> int:
    """Raise the number of files that this process may open as far as the system allows, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20
