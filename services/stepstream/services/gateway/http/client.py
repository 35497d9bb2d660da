"""Calls to upstreams over kept HTTP/1.1 connections: the answer whole, or as an event stream.

A client of our own, since a general one takes a quarter of a call's processor time: see docs/decisions/http-client.md.
"""

import asyncio
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit

from stepstream.services.gateway.http.connection import Connection, Died, Headers, Silent
from stepstream.services.gateway.routing import Upstream

CONNECT_S = 5.0
IDLE_S = 15.0
"""How long a connection is kept without a call: shorter than what servers allow, so that few are closed under one."""
SWEEP_S = 0.5


class Unreachable(OSError):
    """No connection could be made, so nothing was sent."""


FAULTS = (OSError, TimeoutError)
"""What a call to an upstream that has gone away, or never was there, raises: Unreachable, Died or Silent."""

# Headers of one connection (RFC 9110, section 7.6.1), and what the server before us writes itself.
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
_NOT_RETURNED = HOP_BY_HOP | {b"content-length", b"date", b"server", b"set-cookie"}


class StreamBroke(Exception):
    """The upstream went away in the middle of its answer, or said nothing more for too long."""

    def __init__(self, message: str, *, silent: bool) -> None:
        super().__init__(message)
        self.silent = silent


@dataclass(frozen=True)
class Origin:
    """Where an upstream listens."""

    scheme: str
    host: str
    port: int
    base: str
    """What its paths begin with."""

    @classmethod
    def of(cls, url: str) -> "Origin":
        """The origin of a base address.

        Raises:
            ValueError: not an HTTP address.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"'{url}' is no address of an upstream: it begins with http:// or https:// and a host")
        return cls(parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80), parts.path)

    @cached_property
    def authority(self) -> bytes:
        """The value of the `host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = 443 if self.scheme == "https" else 80
        return host.encode() if self.port == usual else f"{host}:{self.port}".encode()


@dataclass(slots=True)
class Reply:
    """An upstream's answer. `body` is all of it, or the first bytes of an event stream; `more` gives the rest."""

    status: int
    headers: Headers
    body: bytes
    upstream: Upstream
    _client: "HttpClient | None" = None
    _origin: Origin | None = None
    _connection: Connection | None = None

    @property
    def streaming(self) -> bool:
        """Whether it is an event stream that has not been closed."""
        return self._connection is not None

    @property
    def whole(self) -> bool:
        """Whether all of a stream has been read."""
        assert self._connection is not None
        return self._connection.drained

    async def more(self) -> bytes:
        """The next bytes of a stream; empty at its end.

        Raises:
            StreamBroke: there will be no more, and this is not the end.
        """
        assert self._connection is not None
        try:
            return await self._connection.read()
        except FAULTS as error:
            self.upstream.failed(str(error) or type(error).__name__, time.monotonic())
            silent = isinstance(error, Silent)
            what = "fell silent" if silent else "went away"
            raise StreamBroke(f"the upstream {what} in the middle of its answer: {error}", silent=silent) from error

    def close(self) -> None:
        """Ends it; a stream that was not read to its end is cut, which tells the upstream to stop."""
        if self._connection is not None:
            assert self._client is not None
            assert self._origin is not None
            self._client.release(self._origin, self._connection)
            self._connection = None
            self.upstream.in_flight -= 1


class HttpClient:
    """Connections to all upstreams. Create it inside the event loop, and close it."""

    def __init__(self, silence_s: float) -> None:
        """`silence_s`: seconds without a byte after which an answer is given up."""
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Origin, list[Connection]] = {}
        self._busy: set[Connection] = set()
        self._sweep = self._loop.call_later(SWEEP_S, self._look)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    async def close(self) -> None:
        """Closes the connections."""
        self._sweep.cancel()
        for connection in [*self._busy, *(c for kept in self._idle.values() for c in kept)]:
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # transports close in the loop's next turn

    async def call(
        self,
        upstream: Upstream,
        origin: Origin,
        method: str,
        path: str,
        body: bytes | None,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> Reply:
        """Makes one attempt; an event stream comes with its first bytes, any other answer whole.

        Raises:
            Unreachable: nothing was sent.
            Died, Silent: no answer, or one that was cut.
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
                raise Died("the stream ended before it began")
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
        """Keeps a connection for the next call, where its reply came whole; closes any other."""
        self._busy.discard(connection)
        if connection.complete and connection.reusable:
            self._idle.setdefault(origin, []).append(connection)
        else:
            connection.abort()

    async def _connection(self, origin: Origin) -> Connection:
        kept = self._idle.get(origin)
        while kept:
            connection = kept.pop()
            if not connection.closed:
                return connection
        try:
            async with asyncio.timeout(CONNECT_S):
                _, made = await self._loop.create_connection(
                    lambda: Connection(self._loop),
                    origin.host,
                    origin.port,
                    ssl=self._tls if origin.scheme == "https" else None,
                )
        except TimeoutError as error:
            raise Unreachable(f"no connection within {CONNECT_S:g} s") from error
        except OSError as error:
            raise Unreachable(str(error)) from error
        return made

    def _look(self) -> None:
        """Gives up silent calls and closes idle connections; one timer for all costs a call nothing."""
        now = self._loop.time()
        for connection in list(self._busy):
            if now - connection.since > self._silence_s:
                connection.abort(Silent(f"nothing came for {self._silence_s:g} s"))
        for origin, kept in list(self._idle.items()):
            fresh = []
            for connection in kept:
                if connection.closed or now - connection.since > IDLE_S:
                    connection.abort()
                else:
                    fresh.append(connection)
            self._idle[origin] = fresh
        self._sweep = self._loop.call_later(min(SWEEP_S, self._silence_s), self._look)


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
