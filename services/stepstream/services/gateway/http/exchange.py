"""One request of a caller and its response, as ASGI has them; `http_server.py` has the connection."""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Protocol

log = logging.getLogger(__name__)

MOST_READ_AHEAD = 64 * 1024
"""Bytes of a body that wait for the application before the caller is slowed down."""
EXTENSION = "stepstream.exchange"
"""Where a scope has its `Exchange`."""

STATUS_LINES = {int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}


class Connection(Protocol):
    """What an exchange needs of its connection."""

    loop: asyncio.AbstractEventLoop
    transport: Any
    server: Any
    writable: asyncio.Future[None] | None
    """Set while the caller takes nothing more."""

    def hold_back(self) -> None:
        """Reads nothing more for now."""
        ...

    def go_on(self) -> None:
        """Reads again."""
        ...

    def ended(self, exchange: "Exchange") -> None:
        """An exchange is over."""
        ...


class Exchange:
    """One request and its response."""

    __slots__ = (
        "_asks_first",
        "_chunked",
        "_chunks_known",
        "_connection",
        "_head",
        "_parts",
        "_size",
        "_started",
        "_taken",
        "_waiter",
        "_without_body",
        "done",
        "gone",
        "keep_alive",
        "on_hangup",
        "scope",
        "whole",
    )

    def __init__(self, connection: Connection, scope: dict[str, Any], keep_alive: bool, chunks_known: bool) -> None:
        """Its head has come.

        Args:
            connection: the caller's.
            scope: as ASGI has it.
            keep_alive: whether the connection outlives it.
            chunks_known: whether the caller speaks HTTP/1.1, and so knows chunks.
        """
        self.scope = scope
        self.keep_alive = keep_alive
        self.whole = False
        """Whether the request has come whole."""
        self.done = False
        """Whether the response has gone out whole."""
        self.gone = False
        """Whether the caller went away before that."""
        self.on_hangup: Callable[[], None] | None = None
        """Called when it does."""
        self._connection = connection
        self._without_body = scope["method"] == "HEAD"
        self._asks_first = b"expect" in [name for name, _ in scope["headers"]]
        """Whether the caller waits for leave to send the body (RFC 9110, section 10.1.1)."""
        self._parts: list[bytes] = []
        self._size = 0
        self._taken = False
        self._waiter: asyncio.Future[None] | None = None
        self._head = b""
        """Of the response, until it leaves with the first part of its body."""
        self._started = False
        self._chunks_known = chunks_known
        self._chunked = False

    async def run(self, app: Any) -> None:
        """Has the application answer."""
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:
            log.error("a request failed", exc_info=error)
        if self.done or self.gone:
            return
        if self._started:
            log.error("a response to %s %s has no end: its connection is cut", self.scope["method"], self.scope["path"])
            self.gone = True
            self._connection.transport.close()
            return
        text = b"Internal Server Error"
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(text))]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": text})

    async def receive(self) -> dict[str, Any]:
        """The body so far, as soon as there is some; behind its end the caller's leaving, or the response's end."""
        if self._asks_first and not self.whole:
            self._asks_first = False
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self.gone or self.done or self._parts or (self.whole and not self._taken)):
            self._connection.go_on()
            self._waiter = self._connection.loop.create_future()
            await self._waiter
        if self.gone or self.done:
            return {"type": "http.disconnect"}
        parts, self._parts, self._size = self._parts, [], 0
        self._taken = self.whole
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return {"type": "http.request", "body": body, "more_body": not self.whole}

    async def send(self, message: Any) -> None:
        """Sends a part of the response. What a caller cannot get, since it is gone, is dropped."""
        if self._connection.writable is not None and not self.gone:
            await self._connection.writable
        if self.gone or self.done:
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
            self._connection.ended(self)

    def take(self, body: bytes) -> None:
        """Takes in some of the request's body."""
        if self.done:
            return
        self._parts.append(body)
        self._size += len(body)
        if self._size > MOST_READ_AHEAD:
            self._connection.hold_back()
        self.wake()

    def hang_up(self) -> None:
        """The caller has gone away."""
        if not self.done:
            self.gone = True
            self.wake()
            if self.on_hangup is not None:
                self.on_hangup()

    def wake(self) -> None:
        """Tells who waits in `receive` that there is something new."""
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
                self.keep_alive = False  # its end is the connection's
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
            raise ValueError("a header has a line end or a null in it")
        return (STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status) + head + b"\r\n"
