"""One HTTP call to an upstream: the answer whole, or as an event stream."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
from yarl import URL

from stepstream.services.gateway.pool import Upstream

CONNECT_S = 5.0
Headers = list[tuple[bytes, bytes]]

FAULTS = (aiohttp.ClientError, OSError, TimeoutError)
"""What a call to an upstream that has gone away, or never was there, raises."""

# Headers of one connection (RFC 9110, section 7.6.1), and what this server or the client library writes itself.
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
_NOT_RETURNED = HOP_BY_HOP | {b"content-length", b"content-encoding", b"date", b"server", b"set-cookie"}
_SKIPPED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


class StreamBroke(Exception):
    """The upstream went away in the middle of its answer."""


@dataclass(slots=True)
class Reply:
    """An upstream's answer. `body` is all of it, or the first bytes of an event stream; `more` gives the rest."""

    status: int
    headers: Headers
    body: bytes
    upstream: Upstream
    _response: aiohttp.ClientResponse | None = None

    @property
    def streaming(self) -> bool:
        """Whether it is an event stream that has not been closed."""
        return self._response is not None

    async def more(self) -> bytes:
        """The next bytes of a stream; empty at its end.

        Raises:
            StreamBroke: there will be no more, and this is not the end.
        """
        assert self._response is not None
        try:
            return await self._response.content.readany()
        except FAULTS as error:
            self.upstream.failed(str(error) or type(error).__name__, time.monotonic())
            raise StreamBroke(f"the upstream went away in the middle of its answer: {error}") from error

    def close(self) -> None:
        """Ends it; a stream that was not read to its end is cut, which tells the upstream to stop."""
        if self._response is not None:
            self._response.close()
            self._response = None
            self.upstream.in_flight -= 1


class HttpClient:
    """Connections to all upstreams. Create it inside the event loop, and close it."""

    def __init__(self, silence_s: float) -> None:
        """`silence_s`: seconds without a byte after which an answer is given up."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silence_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_SKIPPED,
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._session.close()

    async def call(
        self, upstream: Upstream, method: str, url: URL, body: bytes | None, headers: Sequence[tuple[str, str]]
    ) -> Reply:
        """Makes one attempt; an event stream comes with its first bytes, any other answer whole.

        Raises:
            FAULTS: no answer, or one that was cut.
        """
        upstream.in_flight += 1
        response: aiohttp.ClientResponse | None = None
        streaming = False
        try:
            response = await self._session.request(method, url, data=body, headers=headers, allow_redirects=False)
            streaming = response.status < 400 and response.content_type == "text/event-stream"
            first = await (response.content.readany() if streaming else response.read())
            if streaming and not first:
                raise aiohttp.ClientPayloadError("the stream ended before it began")
            returned = [(name, v) for k, v in response.raw_headers if (name := k.lower()) not in _NOT_RETURNED]
            return Reply(response.status, returned, first, upstream, response if streaming else None)
        except BaseException:
            streaming = False
            if response is not None:
                response.close()
            raise
        finally:
            if not streaming:
                upstream.in_flight -= 1
