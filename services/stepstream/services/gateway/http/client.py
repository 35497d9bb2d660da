"""Call upstreams with aiohttp; return answers whole, or as event streams, both up to a size.

See docs/decisions/http-client.md for the choice of the library.
"""

import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from stepstream.config import GatewaySettings, SettingsError, masked

CONNECT_S = 5.0
"""Timeout of a new connection."""
IDLE_S = 15.0
"""Lifetime of an idle connection: shorter than servers allow, so that they rarely close one during a call."""
HEADER_BYTES = 32 * 1024
"""Largest header of an answer; it may have 128."""

Headers = list[tuple[bytes, bytes]]


class Unreachable(OSError):
    """No connection could be made, so nothing was sent."""


class ConnectionLost(OSError):
    """The upstream accepted the call and gave no complete answer, or one above the limit."""


class ReplyTimeout(ConnectionLost, TimeoutError):
    """The upstream accepted the call and then sent nothing until the timeout."""


FAULTS = (OSError, TimeoutError)
"""Exceptions of a call to an unavailable upstream: Unreachable, ConnectionLost or ReplyTimeout."""

# Headers of one connection (RFC 9110, section 7.6.1). Those in _NOT_RETURNED are written by the gateway's server.
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
_NOT_RETURNED = HOP_BY_HOP | {b"content-length", b"date", b"server", b"set-cookie"}


class StreamInterrupted(Exception):
    """The upstream ended its answer early, sent nothing until the timeout, or more than the limit."""

    def __init__(self, message: str, *, silent: bool) -> None:
        """`silent`: it was the timeout."""
        super().__init__(message)
        self.silent = silent


@dataclass(frozen=True)
class Origin:
    """Address of an upstream."""

    url: str
    """Base address: scheme, host, port and the prefix of its paths."""
    proxy: str | None = None
    """Address of the proxy for it; None: a direct connection."""

    @classmethod
    def of(cls, url: str, proxy: str | None = None) -> "Origin":
        """Check a base address.

        Raises:
            ValueError: not an HTTP or HTTPS address.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"'{url}' is no upstream's address: give http:// or https:// and a host")
        return cls(url.rstrip("/"), proxy)


class CalledUpstream(Protocol):
    """The caller's state of an upstream, which calls update; `routing.Upstream` is one."""

    in_flight: int

    def failed(self, fault: str, now: float) -> None:
        """Record that a stream was interrupted; `now`: seconds of the monotonic clock."""
        ...


class Stream:
    """The rest of an event stream."""

    def __init__(self, response: aiohttp.ClientResponse, limit: int) -> None:
        """`limit`: bytes of the whole stream."""
        self._response = response
        self._left = limit

    @property
    def complete(self) -> bool:
        """True once all of it has been read."""
        return self._response.content.at_eof()

    async def read(self) -> bytes:
        """Return the next bytes; empty at the end.

        Raises:
            ConnectionLost, ReplyTimeout: it ended early, or exceeds its limit.
        """
        chunk = await _read(self._response)
        self._left -= len(chunk)
        if self._left < 0:
            raise ConnectionLost("its stream exceeds gateway.answer_mb")
        return chunk

    def close(self) -> None:
        """Release the connection; a stream not read to its end is cut, so that the upstream stops."""
        self._response.close()


@dataclass(slots=True)
class Reply:
    """An upstream's answer. `body` is all of it, or the first bytes of an event stream; `more` returns the rest."""

    status: int
    headers: Headers
    body: bytes
    upstream: CalledUpstream
    _stream: Stream | None = None

    @property
    def streaming(self) -> bool:
        """True for an event stream that has not been closed."""
        return self._stream is not None

    @property
    def complete(self) -> bool:
        """True once all of a stream has been read."""
        assert self._stream is not None
        return self._stream.complete

    async def more(self) -> bytes:
        """Return the next bytes of a stream; empty at its end.

        Raises:
            StreamInterrupted: the stream ended early.
        """
        assert self._stream is not None
        try:
            return await self._stream.read()
        except FAULTS as error:
            self.upstream.failed(str(error) or type(error).__name__, time.monotonic())
            silent = isinstance(error, ReplyTimeout)
            event = "sent nothing more" if silent else "disconnected"
            raise StreamInterrupted(f"the upstream {event} during its answer: {error}", silent=silent) from error

    def close(self) -> None:
        """Release the connection; a stream not read to its end is cut, so that the upstream stops."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
            self.upstream.in_flight -= 1


class HttpClient:
    """Persistent connections to all upstreams. Create it inside the event loop, and close it."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._limit = settings.answer_mb * 1_048_576
        self._proxy = settings.proxy.get_secret_value()
        tls = ssl.create_default_context()
        if settings.ca_file is not None:
            try:
                tls.load_verify_locations(settings.ca_file)
            except OSError as error:  # its text does not name the file
                raise SettingsError(f"gateway.ca_file {settings.ca_file} cannot be read: {error}") from None
        self._session = aiohttp.ClientSession(
            connector=_CheckedConnector(limit=0, keepalive_timeout=IDLE_S, ssl=tls),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=settings.upstream_silence_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            max_line_size=HEADER_BYTES,
            max_field_size=HEADER_BYTES,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    def origin(self, url: str) -> Origin:
        """Return a provider's address, with the proxy of the settings or of the environment unless it is local.

        Raises:
            ValueError: not an HTTP or HTTPS address.
            SettingsError: the proxy is no HTTP proxy.
        """
        direct = Origin.of(url)
        parts = urlsplit(url)
        if _is_local(parts.hostname or ""):
            return direct
        if self._proxy:
            return Origin(direct.url, _proxy_address(self._proxy, "gateway.proxy"))
        proxies = getproxies()
        name = parts.scheme if proxies.get(parts.scheme) else "all"
        if proxy_bypass(parts.netloc) or not proxies.get(name):
            return direct
        return Origin(direct.url, _proxy_address(proxies[name], f"{name.upper()}_PROXY"))

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
            ConnectionLost, ReplyTimeout: no complete answer, or one above the limit.
        """
        upstream.in_flight += 1
        response: aiohttp.ClientResponse | None = None
        streaming = False
        try:
            response = await self._send(origin, method, path, body, headers)
            if response.status < 200:
                raise ConnectionLost(f"it switched to another protocol (status {response.status})")
            returned = []
            is_stream = False
            for name, value in response.raw_headers:
                name = name.lower()
                if name not in _NOT_RETURNED:
                    returned.append((name, value))
                is_stream |= name == b"content-type" and value.lower().startswith(b"text/event-stream")
            if not is_stream or response.status >= 400 or method == "HEAD":
                return Reply(response.status, returned, await self._whole(response), upstream)
            stream = Stream(response, self._limit)
            first = await stream.read()
            if not first:
                raise ConnectionLost("the stream ended before it began")
            streaming = True
            return Reply(response.status, returned, first, upstream, stream)
        finally:
            if not streaming:
                upstream.in_flight -= 1
                if response is not None:
                    response.close()  # after the answer's end this does nothing

    async def _send(
        self, origin: Origin, method: str, path: str, body: bytes | None, headers: Sequence[tuple[bytes, bytes]]
    ) -> aiohttp.ClientResponse:
        try:
            return await self._session.request(
                method,
                _url(origin.url, path),
                # A ready payload: aiohttp would search its registry for one.
                data=None if body is None else aiohttp.BytesPayload(body),
                headers=CIMultiDict([(name.decode("latin-1"), _text(value)) for name, value in headers]),
                allow_redirects=False,
                proxy=origin.proxy,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError) as error:
            raise Unreachable(str(error) or f"no connection within {CONNECT_S:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _fault(error) from error

    async def _whole(self, response: aiohttp.ClientResponse) -> bytes:
        parts = []
        size = 0
        while not response.content.at_eof():
            parts.append(await _read(response))
            size += len(parts[-1])
            if size > self._limit:
                raise ConnectionLost("its answer exceeds gateway.answer_mb")
        return parts[0] if len(parts) == 1 else b"".join(parts)


class _CheckedConnector(aiohttp.TCPConnector):
    """aiohttp's connections without those on which an upstream sent bytes that no request asked for.

    aiohttp 3.14 would give those bytes to the next call. A whole answer shows in `should_close`.
    """

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
        """Return a new or idle connection."""
        while True:
            connection = await super().connect(req, traces, timeout)
            if connection.protocol is not None and not connection.protocol.should_close:
                return connection
            connection.close()


async def _read(response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise _fault(error) from error


def _fault(error: Exception) -> ConnectionLost:
    text = str(error) or type(error).__name__
    return ReplyTimeout(text) if isinstance(error, TimeoutError) else ConnectionLost(text)


@lru_cache(1024)
def _url(base: str, path: str) -> URL:
    return URL(base + path, encoded=True)


def _text(value: bytes) -> str:
    """Return a header's value so that aiohttp, which writes UTF-8, sends its bytes if they are UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _proxy_address(text: str, name: str) -> str:
    """Return a proxy's address, which may lack its scheme, as in `HTTPS_PROXY=proxy:3128`.

    Raises:
        SettingsError: no HTTP proxy; `name` is the setting or variable that names it.
    """
    address = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(address)
        is_proxy = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # its port or its IPv6 address
        is_proxy = False
    if not is_proxy:
        raise SettingsError(f"{name} {masked(address)} is no HTTP proxy: write http://host:port")
    return address


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
