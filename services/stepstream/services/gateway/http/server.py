"""HTTP/1.1 for callers, on httptools' parser: what uvicorn's server asks of a protocol, at half of its own one's price.

The server around it (signals, sockets, the application's life, graceful shutdown) is uvicorn's. What an application
sends first and what it sends next leave together, and nothing is set up for a request that most requests do not need.
"""

import asyncio
import logging
from collections import deque
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn import Config
from uvicorn.server import ServerState

from stepstream.services.gateway.http.exchange import EXTENSION, STATUS_LINES, Exchange

log = logging.getLogger(__name__)


class HttpServerProtocol(asyncio.Protocol):
    """One caller's connection: one exchange at a time, later ones wait for their turn."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Made by uvicorn."""
        self.server = server_state
        self.loop = _loop or asyncio.get_running_loop()
        self.transport: Any = None
        self.writable: asyncio.Future[None] | None = None
        """Set while the caller takes nothing more."""
        self._app: Any = config.loaded_app
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # what asked for the end is answered
        self._exchange: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._reading: Exchange | None = None
        self._paused = False
        self._patience_s = config.timeout_keep_alive
        self._idle_since = self.loop.time()
        self._timer = self.loop.call_later(self._patience_s, self._look)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []

    def shutdown(self) -> None:
        """Ends the connection, after the exchange that is under way."""
        if self._exchange is None:
            self.transport.close()
        else:
            self._exchange.keep_alive = False

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A caller is there."""
        self.transport = transport
        self.server.connections.add(self)  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # it is answered in HTTP/1.1; what comes behind it may be anything
            if self._exchange is not None:
                self._exchange.keep_alive = False
        except httptools.HttpParserError as error:
            log.info("a request is not HTTP: %s", error)
            if self._exchange is None:
                text = b"Invalid HTTP request received."
                head = b"content-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(text)
                self.transport.write(STATUS_LINES[400] + head + text)
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """The caller is gone."""
        self.server.connections.discard(self)
        self._timer.cancel()
        self.resume_writing()
        self._waiting.clear()
        if self._exchange is not None:
            self._exchange.hang_up()

    def pause_writing(self) -> None:
        """The caller is slow."""
        self.writable = self.writable or self.loop.create_future()

    def resume_writing(self) -> None:
        """It has taken most of what it was sent."""
        writable, self.writable = self.writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def _look(self) -> None:
        """Closes a connection that has been idle for too long; one timer that seldom goes off costs a call nothing."""
        left: float = self._patience_s
        if self._exchange is None and self._reading is None:
            left += self._idle_since - self.loop.time()
            if left <= 0:
                self.transport.close()
                return
        self._timer = self.loop.call_later(left, self._look)

    # Called by the parser.

    def on_message_begin(self) -> None:
        """A request begins."""
        self._url, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        """Some of its address."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is there: its turn has come, or will."""
        parser = self._parser
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        http_1_0 = parser.get_http_version() == "1.0"
        scope: dict[str, Any] = {
            "type": "http",
            "method": parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
            "headers": self._headers,
        }
        exchange = self._reading = Exchange(self, scope, not http_1_0 and parser.should_keep_alive(), not http_1_0)
        scope["extensions"] = {EXTENSION: exchange}
        if self._exchange is None:
            self._begin(exchange)
        else:
            self._waiting.append(exchange)
            self.hold_back()

    def on_body(self, body: bytes) -> None:
        """Some of its body."""
        if self._reading is not None:
            self._reading.take(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        exchange, self._reading = self._reading, None
        if exchange is not None:
            exchange.whole = True
            exchange.wake()

    # Called by the exchange.

    def hold_back(self) -> None:
        """Reads nothing more for now."""
        if not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def go_on(self) -> None:
        """Reads again."""
        if self._paused:
            self._paused = False
            self.transport.resume_reading()

    def ended(self, exchange: "Exchange") -> None:
        """An exchange is over: the next one's turn has come."""
        self._exchange = None
        self._idle_since = self.loop.time()
        self.server.total_requests += 1
        if not exchange.keep_alive:
            self.transport.close()
            return
        if self._waiting:
            self._begin(self._waiting.popleft())
        if not self._waiting:
            self.go_on()

    def _begin(self, exchange: "Exchange") -> None:
        self._exchange = exchange
        task = self.loop.create_task(exchange.run(self._app))
        self.server.tasks.add(task)
        task.add_done_callback(self.server.tasks.discard)
