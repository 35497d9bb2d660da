"""Run an HTTP server: uvicorn with httptools' parser, and limits for callers that are slow, endless or many.

uvicorn has no limit of headers and bodies, and no deadline but that of an idle connection. `LimitedProtocol` adds them.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from math import inf
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stepstream.config import HttpSettings
from stepstream.services.http_connections import ConnectionTable, refusal
from stepstream.services.same_site import SameSite

log = logging.getLogger(__name__)

CONNECTION = "stepstream.connection"
"""Key of the `LimitedProtocol` in a scope's extensions."""
MAX_PIPELINED = 64
"""Requests that one caller may send ahead of their responses."""
LINGER_S = 2.0
"""Time to discard what a refused caller still sends: closing earlier would take the response from it."""
WRITE_STEP = 64 * 1024
"""Bytes that a caller must take in `http.write_s`."""
_UPGRADE_HEADERS = frozenset({b"upgrade", b"http2-settings"})


class ServerConfig(uvicorn.Config):
    """uvicorn's configuration with Stepstream's limits, and refusal of other sites' pages."""

    def __init__(self, app: Any, limits: HttpSettings, **options: Any) -> None:
        """`options`: further ones of `uvicorn.Config`."""
        fixed: dict[str, Any] = {
            "http": LimitedProtocol,
            "ws": "none",
            "access_log": False,
            "log_config": None,
            "server_header": False,
            "proxy_headers": False,
            "timeout_keep_alive": limits.idle_s,
        }
        super().__init__(SameSite(app, limits), **fixed, **options)
        self.table = ConnectionTable(limits)


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with limits. `config` is a `ServerConfig`."""

    def __init__(
        self,
        config: ServerConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Implement the constructor that uvicorn calls."""
        super().__init__(config, server_state, app_state, _loop)
        self.disconnected = False
        self.on_disconnect: Callable[[], None] | None = None
        """Called when the caller disconnects during the current request."""
        self._table = config.table
        self._limits = config.table.limits
        self._deadline = self.loop.time() + self._limits.idle_s
        """Time by which the caller must send what it owes; inf: nothing."""
        self._in_head = self._in_body = False
        self._head_bytes = 0
        """Bytes since the last part of a body: heads, trailers and chunk extensions."""
        self._body_bytes = 0
        self._held = 0
        """Bytes of bodies that the table counts for this connection."""
        self._refusal: tuple[int, str] | None = None
        self._lingering = False
        self._stalled: tuple[float, int] | None = None
        """Time and size of the unsent response when the caller last took `WRITE_STEP` bytes."""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, or refuse it."""
        super().connection_made(transport)  # type: ignore[arg-type]
        if not self._table.add(self):
            transport.write(refusal(503, "the server has no free connection; try again later"))  # type: ignore[attr-defined]
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the caller."""
        self._unset_keepalive_if_required()
        if self._lingering:
            return
        while data:
            self._head_bytes += len(data)
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade() + data[upgrade.args[0] :]
                continue
            except httptools.HttpParserError as error:
                self._refuse(*(self._refusal or (400, f"not an HTTP/1.1 request: {error}")))
            else:
                if self._head_bytes > self._limits.header_kb * 1024 and not self._lingering:
                    self._refuse(431, f"the headers are larger than {self._limits.header_kb} KB")
            return

    def connection_lost(self, error: Exception | None) -> None:
        """Unregister the connection, and report the disconnect to the current request."""
        self._table.remove(self)
        self._table.release(self._held)
        self._held = 0
        super().connection_lost(error)
        self._report_disconnect()

    def pause_writing(self) -> None:
        """Make `send` wait: the caller's receive buffer is full."""
        super().pause_writing()
        self._stalled = (self.loop.time(), self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Let `send` continue."""
        super().resume_writing()
        self._stalled = None

    # http_connections.Connection

    def expire(self, now: float) -> None:
        """Answer or close if a deadline has passed."""
        if self._stalled is not None:
            since, size = self._stalled
            left = self.transport.get_write_buffer_size()
            if left <= size - WRITE_STEP:
                self._stalled = (now, left)
            elif now - since > self._limits.write_s:
                self.cut()
                return
        if now < self._deadline or self.flow.read_paused:
            return
        if self._lingering:
            self.cut()
        elif not (self._in_head or self._in_body):
            self.transport.close()
        else:
            part, limit = ("head", self._limits.header_s) if self._in_head else ("body", self._limits.body_s)
            self._refuse(408, f"the request's {part} did not arrive within {limit:g} s")

    def cut(self) -> None:
        """Close at once, and drop what the caller has not taken; the kernel would keep it for minutes."""
        reset_at_close = struct.pack("ii", 1, 0)
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset_at_close)
        self.transport.abort()

    # httptools.HttpRequestParser

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: self}  # type: ignore[dict-item]
        self._in_head = True
        self._body_bytes = 0
        self._deadline = self.loop.time() + self._limits.header_s

    def on_headers_complete(self) -> None:
        """Begin the exchange, or queue it behind the current one."""
        if self._head_bytes > self._limits.header_kb * 1024:  # the bytes so far may contain the body too
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self._limits.header_kb * 1024:
                self._fail(431, f"the headers are larger than {self._limits.header_kb} KB")
        if self.parser.get_method() == b"CONNECT":
            self._fail(400, "this server is no proxy")
        if len(self.pipeline) >= MAX_PIPELINED:
            self._fail(400, f"more than {MAX_PIPELINED} requests ahead of their responses")
        self._in_head, self._in_body = False, True
        self._deadline = self.loop.time() + self._limits.body_s
        self._table.use(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Add to the request's body."""
        self._head_bytes = 0
        if self.cycle.response_complete:
            return
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.body_mb * 1_048_576:
            self._fail(413, f"the body is larger than {self._limits.body_mb} MB")
        if not self._table.hold(len(body)):
            self._fail(503, "the server holds too many large requests; try again later")
        self._held += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Complete the request."""
        if self.parser.should_upgrade():
            return  # its body, if there is one, comes after `_without_upgrade`
        self._in_body, self._head_bytes, self._deadline = False, 0, inf
        super().on_message_complete()
        if self.cycle.response_complete:
            self._rest()

    def on_response_complete(self) -> None:
        """Begin the next request, or wait for it."""
        self.on_disconnect = None
        super().on_response_complete()
        if self.cycle.response_complete:
            self._table.release(self._held)
            self._held = 0
            if not self._in_body:
                self._rest()

    def _should_upgrade(self) -> bool:
        return True  # `data_received` handles it

    def _without_upgrade(self) -> bytes:
        """Return the head of a request without its wish for another protocol, which a server may ignore.

        httptools ends a request with its head if it names another protocol, and loses the body. Java's client asks for
        HTTP/2 with every first request of a plain connection.
        """
        method = self.scope["method"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._head_bytes = 0
        lines = [b"%b %b HTTP/1.1\r\n" % (method.encode(), self.url)]
        for name, value in self.headers:
            if name == b"connection":
                value = b", ".join(each for each in value.split(b",") if each.strip().lower() not in _UPGRADE_HEADERS)
            if name not in _UPGRADE_HEADERS:
                lines.append(b"%b: %b\r\n" % (name, value))
        return b"".join(lines) + b"\r\n"

    def _rest(self) -> None:
        self._deadline = self.loop.time() + self._limits.idle_s
        self._table.rest(self)

    def _fail(self, status: int, message: str) -> None:
        """Leave the parser, and refuse the request."""
        self._refusal = (status, message)
        raise ValueError(message)

    def _refuse(self, status: int, message: str) -> None:
        """Answer the request that is being read, and read no more; cut a connection with another response under way."""
        cycle = self.cycle
        log.info("refused a request with status %d: %s", status, message)
        self._table.use(self)
        if self.transport.is_closing():
            return
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started or self.pipeline or not cycle.more_body:
                self.transport.close()
                return
            cycle.disconnected = True
            cycle.message_event.set()
            self._report_disconnect()
        self._lingering = True
        self._deadline = self.loop.time() + LINGER_S
        self.flow.resume_reading()
        self.transport.write(refusal(status, message))
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _report_disconnect(self) -> None:
        self.disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()
