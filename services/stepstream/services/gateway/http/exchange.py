"""Handle one request and its response over ASGI; `server.py` handles the connection."""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Protocol

log = logging.getLogger(__name__)

READ_AHEAD_BYTES = 64 * 1024
"""Bytes of a body buffered for the application before reading from the caller pauses."""
EXTENSION = "stepstream.exchange"
"""Key of the `Exchange` in a scope's extensions."""

STATUS_LINES = {int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}


class Connection(Protocol):
    """Interface of an exchange's connection."""

    loop: asyncio.AbstractEventLoop
    transport: Any
    server: Any
    writable: asyncio.Future[None] | None
    """Set while the caller's receive buffer is full; done when it has room again."""

    def pause_reading(self) -> None:
        """Stop reading from the caller."""
        ...

    def resume_reading(self) -> None:
        """Read from the caller again."""
        ...

    def finish(self, exchange: "Exchange") -> None:
        """End an exchange, and begin the next."""
        ...


class Exchange:
    """One request and its response."""

    __slots__ = (
        "_chunked",
        "_chunks_known",
        "_connection",
        "_expects_continue",
        "_head",
        "_parts",
        "_received_all",
        "_size",
        "_started",
        "_waiter",
        "_without_body",
        "complete",
        "disconnected",
        "done",
        "keep_alive",
        "on_disconnect",
        "scope",
    )

    def __init__(self, connection: Connection, scope: dict[str, Any], keep_alive: bool, chunks_known: bool) -> None:
        """Begin after the request's head has arrived.

        Args:
            connection: the caller's connection.
            scope: ASGI's scope.
            keep_alive: True if the connection stays open after the response.
            chunks_known: True if the caller speaks HTTP/1.1, and so understands chunked bodies.
        """
        self.scope = scope
        self.keep_alive = keep_alive
        self.complete = False
        """True once the whole request has arrived."""
        self.done = False
        """True once the whole response has been sent."""
        self.disconnected = False
        """True if the caller disconnected before that."""
        self.on_disconnect: Callable[[], None] | None = None
        """Called when the caller disconnects."""
        self._connection = connection
        self._without_body = scope["method"] == "HEAD"
        self._expects_continue = b"expect" in [name for name, _ in scope["headers"]]
        """True if the caller waits for 100 Continue before it sends the body (RFC 9110, section 10.1.1)."""
        self._parts: list[bytes] = []
        self._size = 0
        self._received_all = False
        self._waiter: asyncio.Future[None] | None = None
        self._head = b""
        """Head of the response, until it is sent with the first part of the body."""
        self._started = False
        self._chunks_known = chunks_known
        self._chunked = False

    async def run(self, app: Any) -> None:
        """Let the application answer; on its failure, send 500 or cut the connection."""
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:
            log.error("the application failed on %s %s", self.scope["method"], self.scope["path"], exc_info=error)
        if self.done or self.disconnected:
            return
        if self._started:
            log.error("cut a connection: no end of the response to %s %s", self.scope["method"], self.scope["path"])
            self.disconnected = True
            self._connection.transport.close()
            return
        text = b"Internal Server Error"
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(text))]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": text})

    async def receive(self) -> dict[str, Any]:
        """Wait for some of the body; after its end, wait for the caller's disconnect or the response's end."""
        if self._expects_continue and not self.complete:
            self._expects_continue = False
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self.disconnected or self.done or self._parts or (self.complete and not self._received_all)):
            self._connection.resume_reading()
            self._waiter = self._connection.loop.create_future()
            await self._waiter
        if self.disconnected or self.done:
            return {"type": "http.disconnect"}
        parts, self._parts, self._size = self._parts, [], 0
        self._received_all = self.complete
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return {"type": "http.request", "body": body, "more_body": not self.complete}

    async def send(self, message: Any) -> None:
        """Send a part of the response; after a disconnect it is dropped."""
        if self._connection.writable is not None and not self.disconnected:
            await self._connection.writable
        if self.disconnected or self.done:
            return
        if message["type"] == "http.response.start":
            self._head = self._head_of(message["status"], message["headers"])
            return
        body, last = message.get("body", b""), not message.get("more_body", False)
        if self._without_body:
            body = b""
        elif self._chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"0\r\n\r\n" if last else b"")
        out, self._head = self._head + body, b""
        self._started = True
        if out:
            self._connection.transport.write(out)
        if last:
            self.done = True
            self.wake()
            self._connection.finish(self)

    def add_body(self, body: bytes) -> None:
        """Add some of the request's body."""
        if self.done:
            return
        self._parts.append(body)
        self._size += len(body)
        if self._size > READ_AHEAD_BYTES:
            self._connection.pause_reading()
        self.wake()

    def disconnect(self) -> None:
        """Record that the caller disconnected."""
        if not self.done:
            self.disconnected = True
            self.wake()
            if self.on_disconnect is not None:
                self.on_disconnect()

    def wake(self) -> None:
        """Resume a waiting `receive`."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _head_of(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        lines = [b"%b: %b\r\n" % header for header in self._connection.server.default_headers]
        lines += [b"%b: %b\r\n" % header for header in headers]
        names = {name for name, _ in headers}
        if b"content-length" not in names and status not in (204, 304):
            self._chunked = self._chunks_known and not self._without_body
            if self._chunked:
                lines.append(b"transfer-encoding: chunked\r\n")
            elif not self._without_body:
                self.keep_alive = False  # the end of the connection ends the body
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
            raise ValueError("a response header contains a line end or a null")
        return (STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status) + head + b"\r\n"
