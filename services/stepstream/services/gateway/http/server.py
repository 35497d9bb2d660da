"""Serve HTTP/1.1 to callers with httptools' parser, at half the cost of uvicorn's own protocol.

Uvicorn provides the server around it: signals, sockets, ASGI lifespan, graceful shutdown. A response's head is sent
together with the first part of its body, and rarely needed state is created only when needed.
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
    """One caller's connection. It handles one exchange at a time; pipelined ones are queued."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Implement the constructor that uvicorn calls."""
        self.server = server_state
        self.loop = _loop or asyncio.get_running_loop()
        self.transport: Any = None
        self.writable: asyncio.Future[None] | None = None
        """Set while the caller's receive buffer is full; done when it has room again."""
        self._app: Any = config.loaded_app
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # answer the request that asked to close
        self._exchange: Exchange | None = None
        self._queue: deque[Exchange] = deque()
        self._reading: Exchange | None = None
        self._paused = False
        self._keep_alive_s = config.timeout_keep_alive
        self._idle_since = self.loop.time()
        self._timer = self.loop.call_later(self._keep_alive_s, self._close_if_idle)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []

    def shutdown(self) -> None:
        """Close the connection after the exchange in progress."""
        if self._exchange is None:
            self.transport.close()
        else:
            self._exchange.keep_alive = False

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection."""
        self.transport = transport
        self.server.connections.add(self)  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the caller."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # answer in HTTP/1.1; later bytes may be any protocol
            if self._exchange is not None:
                self._exchange.keep_alive = False
        except httptools.HttpParserError as error:
            log.info("closed a connection: not an HTTP request: %s", error)
            if self._exchange is None:
                text = b"Invalid HTTP request received."
                head = b"content-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(text)
                self.transport.write(STATUS_LINES[400] + head + text)
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Unregister the connection and cancel its exchange."""
        self.server.connections.discard(self)
        self._timer.cancel()
        self.resume_writing()
        self._queue.clear()
        if self._exchange is not None:
            self._exchange.disconnect()

    def pause_writing(self) -> None:
        """Make `send` wait: the caller's receive buffer is full."""
        self.writable = self.writable or self.loop.create_future()

    def resume_writing(self) -> None:
        """Let `send` continue."""
        writable, self.writable = self.writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def _close_if_idle(self) -> None:
        """Close an idle connection after the keep-alive time; one rare timer costs a call nothing."""
        left: float = self._keep_alive_s
        if self._exchange is None and self._reading is None:
            left += self._idle_since - self.loop.time()
            if left <= 0:
                self.transport.close()
                return
        self._timer = self.loop.call_later(left, self._close_if_idle)

    # httptools.HttpRequestParser

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._url, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        """Add to its URL."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Begin the exchange, or queue it behind the current one."""
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
            self._queue.append(exchange)
            self.pause_reading()

    def on_body(self, body: bytes) -> None:
        """Add to its body."""
        if self._reading is not None:
            self._reading.add_body(body)

    def on_message_complete(self) -> None:
        """Complete the request."""
        exchange, self._reading = self._reading, None
        if exchange is not None:
            exchange.complete = True
            exchange.wake()

    # exchange.Connection

    def pause_reading(self) -> None:
        """Stop reading from the caller."""
        if not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the caller again."""
        if self._paused:
            self._paused = False
            self.transport.resume_reading()

    def finish(self, exchange: Exchange) -> None:
        """End an exchange: close the connection, or begin the next."""
        self._exchange = None
        self._idle_since = self.loop.time()
        self.server.total_requests += 1
        if not exchange.keep_alive:
            self.transport.close()
            return
        if self._queue:
            self._begin(self._queue.popleft())
        if not self._queue:
            self.resume_reading()

    def _begin(self, exchange: Exchange) -> None:
        self._exchange = exchange
        task = self.loop.create_task(exchange.run(self._app))
        self.server.tasks.add(task)
        task.add_done_callback(self.server.tasks.discard)
