"""Call upstreams over persistent HTTP/1.1 connections; return answers whole, or as event streams.

A general HTTP client takes a quarter of a call's processor time: see docs/decisions/http-client.md.
"""

import asyncio
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol
from urllib.parse import urlsplit

from stepstream.services.gateway.http.connection import Connection, ConnectionLost, Headers, ReplyTimeout

CONNECT_S = 5.0
"""Timeout of a new connection."""
IDLE_S = 15.0
"""Lifetime of an idle connection: shorter than servers allow, so that they rarely close one during a call."""
SWEEP_S = 0.5
"""Interval of checks for silent calls and idle connections."""


class Unreachable(OSError):
    """No connection could be made, so nothing was sent."""


FAULTS = (OSError, TimeoutError)
"""Exceptions of a call to an unavailable upstream: Unreachable, ConnectionLost or ReplyTimeout."""

# Headers of one connection (RFC 9110, section 7.6.1). Those in _NOT_RETURNED are written by the gateway's server.
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
_NOT_RETURNED = HOP_BY_HOP | {b"content-length", b"date", b"server", b"set-cookie"}


class StreamInterrupted(Exception):
    """The upstream disconnected during its answer, or sent nothing until the timeout."""

    def __init__(self, message: str, *, silent: bool) -> None:
        """`silent`: it was the timeout."""
        super().__init__(message)
        self.silent = silent


@dataclass(frozen=True)
class Origin:
    """Address of an upstream."""

    scheme: str
    host: str
    port: int
    base: str
    """Prefix of its paths."""

    @classmethod
    def of(cls, url: str) -> "Origin":
        """Parse a base address.

        Raises:
            ValueError: not an HTTP or HTTPS address.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"'{url}' is no upstream's address: give http:// or https:// and a host")
        return cls(parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80), parts.path)

    @cached_property
    def authority(self) -> bytes:
        """Value of the `host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = 443 if self.scheme == "https" else 80
        return host.encode() if self.port == usual else f"{host}:{self.port}".encode()


class CalledUpstream(Protocol):
    """The caller's state of an upstream, which calls update; `routing.Upstream` is one."""

    in_flight: int

    def failed(self, fault: str, now: float) -> None:
        """Record that a stream was interrupted; `now`: seconds of the monotonic clock."""
        ...


@dataclass(slots=True)
class Reply:
    """An upstream's answer. `body` is all of it, or the first bytes of an event stream; `more` returns the rest."""

    status: int
    headers: Headers
    body: bytes
    upstream: CalledUpstream
    _client: "HttpClient | None" = None
    _origin: Origin | None = None
    _connection: Connection | None = None

    @property
    def streaming(self) -> bool:
        """True for an event stream that has not been closed."""
        return self._connection is not None

    @property
    def complete(self) -> bool:
        """True once all of a stream has been read."""
        assert self._connection is not None
        return self._connection.drained

    async def more(self) -> bytes:
        """Return the next bytes of a stream; empty at its end.

        Raises:
            StreamInterrupted: the stream ended early.
        """
        assert self._connection is not None
        try:
            return await self._connection.read()
        except FAULTS as error:
            self.upstream.failed(str(error) or type(error).__name__, time.monotonic())
            silent = isinstance(error, ReplyTimeout)
            event = "sent nothing more" if silent else "disconnected"
            raise StreamInterrupted(f"the upstream {event} during its answer: {error}", silent=silent) from error

    def close(self) -> None:
        """Release the connection; a stream not read to its end is cut, so that the upstream stops."""
        if self._connection is not None:
            assert self._client is not None
            assert self._origin is not None
            self._client.release(self._origin, self._connection)
            self._connection = None
            self.upstream.in_flight -= 1


class HttpClient:
    """Persistent connections to all upstreams. Create it inside the event loop, and close it."""

    def __init__(self, silence_s: float) -> None:
        """`silence_s`: timeout of an answer in seconds without a byte."""
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Origin, list[Connection]] = {}
        self._busy: set[Connection] = set()
        self._timer = self._loop.call_later(SWEEP_S, self._sweep)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    async def close(self) -> None:
        """Close the connections."""
        self._timer.cancel()
        for connection in [*self._busy, *(c for idle in self._idle.values() for c in idle)]:
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # transports close in the loop's next turn

    async def call(
        self,
        upstream: CalledUpstream,
        origin: Origin,
        method: str,
        path: str,
        body: bytes | None,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> Reply:
        """Call once; return an event stream with its first bytes, and any other answer whole.

        Raises:
            Unreachable: nothing was sent.
            ConnectionLost, ReplyTimeout: no complete answer.
        """
        upstream.in_flight += 1
        connection: Connection | None = None
        streaming = False
        try:
            connection = await self._connection(origin)
            self._busy.add(connection)
            request = _request(origin, method, path, body, headers)
            first = await connection.call(request, method == "HEAD")
            streaming = connection.streaming
            if streaming and not first:
                raise ConnectionLost("the stream ended before it began")
            returned = [pair for pair in connection.headers if pair[0] not in _NOT_RETURNED]
            if streaming:
                return Reply(connection.status, returned, first, upstream, self, origin, connection)
            return Reply(connection.status, returned, first, upstream)
        except BaseException:
            streaming = False
            raise
        finally:
            if not streaming:
                upstream.in_flight -= 1
                if connection is not None:
                    self.release(origin, connection)

    def release(self, origin: Origin, connection: Connection) -> None:
        """Reuse a connection whose reply was complete; close any other."""
        self._busy.discard(connection)
        if connection.complete and connection.reusable:
            self._idle.setdefault(origin, []).append(connection)
        else:
            connection.abort()

    async def _connection(self, origin: Origin) -> Connection:
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if not connection.closed:
                return connection
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self._loop),
                    origin.host,
                    origin.port,
                    ssl=self._tls if origin.scheme == "https" else None,
                )
        except TimeoutError as error:
            raise Unreachable(f"no connection within {CONNECT_S:g} s") from error
        except OSError as error:
            raise Unreachable(str(error)) from error
        return connection

    def _sweep(self) -> None:
        """Abort silent calls and close idle connections; one timer for all costs a call nothing."""
        now = self._loop.time()
        for connection in list(self._busy):
            if now - connection.since > self._silence_s:
                connection.abort(ReplyTimeout(f"no byte for {self._silence_s:g} s"))
        for origin, idle in list(self._idle.items()):
            fresh = []
            for connection in idle:
                if connection.closed or now - connection.since > IDLE_S:
                    connection.abort()
                else:
                    fresh.append(connection)
            self._idle[origin] = fresh
        self._timer = self._loop.call_later(min(SWEEP_S, self._silence_s), self._sweep)


def _request(
    origin: Origin, method: str, path: str, body: bytes | None, headers: Sequence[tuple[bytes, bytes]]
) -> bytes:
    lines = [b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method.encode(), (origin.base + path).encode(), origin.authority)]
    lines += [b"%b: %b\r\n" % header for header in headers]
    if body is not None or method not in ("GET", "HEAD"):
        lines.append(b"content-length: %d\r\n" % len(body or b""))
    lines.append(b"\r\n")
    if body:
        lines.append(body)
    return b"".join(lines)
