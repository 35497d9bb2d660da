"""Calls to inference workers. One that dies before the agent got a byte is made again elsewhere, or a little later.

Repeating is safe: a chat completion changes nothing at the worker, and what nobody received did not happen.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
from yarl import URL

from stepstream.config.sections import Gateway
from stepstream.services.gateway.errors import NoUpstream
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.pool import Pool, Upstream

CONNECT_S = 5.0
UNAVAILABLE = frozenset({502, 503, 504})
"""Statuses of a worker that is starting or of a proxy before a dead one: as if it had refused the connection."""

Headers = list[tuple[bytes, bytes]]

_RETURNED = frozenset({"content-type", "retry-after", "x-request-id", "openai-processing-ms", "openai-version"})
_SKIPPED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


FAULTS = (aiohttp.ClientError, OSError, TimeoutError)
"""What a call to a worker that has gone away, or never was there, raises."""


class StreamBroke(Exception):
    """The worker went away in the middle of its answer."""


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
            raise StreamBroke(f"the inference worker went away in the middle of its answer: {error}") from error

    def close(self) -> None:
        """Ends it; a stream that was not read to its end is cut, which tells the worker to stop."""
        if self._response is not None:
            self._response.close()
            self._response = None
            self.upstream.in_flight -= 1


class Upstreams:
    """The workers behind the gateway. Create it inside the event loop, and close it."""

    def __init__(self, settings: Gateway, metrics: Metrics) -> None:
        self.pool = Pool(settings.upstreams)
        self._deadline_s = settings.upstream_deadline_s
        self._metrics = metrics
        self._urls: dict[tuple[str, str], URL] = {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=settings.upstream_silence_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_SKIPPED,
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._session.close()

    async def send(self, method: str, path: str, body: bytes | None, headers: Sequence[tuple[str, str]]) -> Reply:
        """Makes one call; a reply that is an event stream comes with its first bytes, any other one whole.

        Raises:
            NoUpstream: for `gateway.upstream_deadline_s` seconds since the first failure none has answered.
        """
        give_up: float | None = None
        unavailable: Reply | None = None
        while True:
            now = time.monotonic()
            upstream = self.pool.choose(now)
            if upstream is None:
                await asyncio.sleep(max(self.pool.next_try() - now, 0.001))
            else:
                try:
                    reply = await self._attempt(upstream, method, path, body, headers)
                except FAULTS as error:
                    upstream.failed(str(error) or type(error).__name__, time.monotonic())
                else:
                    if reply.status not in UNAVAILABLE:
                        upstream.succeeded()
                        return reply
                    unavailable = reply
                    upstream.failed(f"HTTP {reply.status}", time.monotonic())
                self._metrics.upstream_failures.inc()
            now = time.monotonic()
            give_up = give_up or now + self._deadline_s
            if now >= give_up:
                if unavailable is not None:
                    return unavailable
                raise NoUpstream(f"no inference worker answered: {self.pool.faults()}")

    async def _attempt(
        self, upstream: Upstream, method: str, path: str, body: bytes | None, headers: Sequence[tuple[str, str]]
    ) -> Reply:
        url = self._urls.get((upstream.url, path))
        if url is None:
            url = self._urls[upstream.url, path] = URL(upstream.url + path)
        upstream.in_flight += 1
        response: aiohttp.ClientResponse | None = None
        streaming = False
        try:
            response = await self._session.request(method, url, data=body, headers=headers, allow_redirects=False)
            streaming = response.content_type == "text/event-stream"
            first = await (response.content.readany() if streaming else response.read())
            if streaming and not first:
                raise aiohttp.ClientPayloadError("the stream ended before it began")
            returned = [(k.lower().encode(), v.encode()) for k, v in response.headers.items() if k.lower() in _RETURNED]
            if not streaming:
                return Reply(response.status, returned, first, upstream)
            return Reply(response.status, returned, first, upstream, response)
        except BaseException:
            streaming = False
            if response is not None:
                response.close()
            raise
        finally:
            if not streaming:
                upstream.in_flight -= 1
