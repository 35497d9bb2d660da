"""Hold one HTTP/1.1 connection to an upstream: one call at a time, parsed by httptools."""

import asyncio
from typing import Any

import httptools

Headers = list[tuple[bytes, bytes]]

BUFFER_BYTES = 256 * 1024
"""Bytes of a stream buffered for a slow caller before reading from the upstream pauses."""


class ConnectionLost(OSError):
    """The upstream accepted the call and disconnected before its answer was complete."""


class ReplyTimeout(ConnectionLost, TimeoutError):
    """The upstream accepted the call and then sent nothing until the timeout."""


class Connection(asyncio.Protocol):
    """A connection. `call` and `read` return an event stream in parts, and any other reply whole."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: Any = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._sized = False
        self._without_body = False
        self._paused = False
        self._fault: ConnectionLost | None = None
        self.status = 0
        self.headers: Headers = []
        self.streaming = False
        self.complete = False
        self.reusable = False
        """True if another call is possible after this reply."""
        self.closed = False
        self.since = 0.0
        """Time of the last byte sent or received, in seconds of the loop's clock."""

    async def call(self, request: bytes, without_body: bool) -> bytes:
        """Send a request; return the body, or the first bytes of an event stream.

        Args:
            request: head and body.
            without_body: the reply has no body, even if its head gives a length (a reply to HEAD).

        Raises:
            ConnectionLost, ReplyTimeout: no complete reply.
        """
        self.headers = []
        self.status = 0
        self.streaming = self.complete = self._sized = False
        self._without_body = without_body
        self.since = self._loop.time()
        if not self.closed:  # an upstream may disconnect between two calls
            self._transport.write(request)
        return await self.read()

    @property
    def drained(self) -> bool:
        """True once the reply is complete and has been read."""
        return self.complete and not self._chunks

    async def read(self) -> bytes:
        """Return the whole body, or the next bytes of a stream; empty at its end.

        Raises:
            ConnectionLost, ReplyTimeout: the reply ended early.
        """
        if not self.complete and (not self._chunks or not self.streaming):
            if self._fault is not None or self.closed:
                raise self._fault or ConnectionLost("the connection was closed")
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        chunks, self._chunks, self._buffered = self._chunks, [], 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def abort(self, fault: ConnectionLost | None = None) -> None:
        """Close immediately; a waiting `read` raises the fault."""
        self._fail(fault or ConnectionLost("the call was cancelled"))
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the upstream."""
        self.since = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.abort(ConnectionLost(f"its answer is not HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        """Fail a waiting `read`; the end of the connection completes a reply without a length."""
        if self.status and not self.complete and not self._sized and error is None:
            self.on_message_complete()
        self._fail(ConnectionLost(str(error) if error is not None else "it closed the connection"))

    # httptools.HttpResponseParser

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header."""
        name = name.lower()
        self._sized |= name in (b"content-length", b"transfer-encoding")
        self.streaming |= name == b"content-type" and value.startswith(b"text/event-stream")
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Read the status."""
        self.status = self._parser.get_status_code()
        self.streaming &= self.status < 400
        if self._without_body:
            self.on_message_complete()

    def on_body(self, body: bytes) -> None:
        """Store some of the body; pause reading if too much is buffered."""
        self._chunks.append(body)
        if self.streaming:
            self._buffered += len(body)
            if self._buffered > BUFFER_BYTES and not self._paused:
                self._paused = True
                self._transport.pause_reading()
            self._wake()

    def on_message_complete(self) -> None:
        """Complete the reply; an interim one (1xx) is discarded."""
        if self.status < 200:
            self.headers, self.status = [], 0
            return
        self.complete = True
        self.reusable = self._sized and not self._without_body and self._parser.should_keep_alive()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, fault: ConnectionLost) -> None:
        self.closed = True
        self.reusable = False
        if self._fault is None:
            self._fault = fault
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(fault)
