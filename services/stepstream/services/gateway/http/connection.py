"""One HTTP/1.1 connection to an upstream, one call at a time, on httptools' parser."""

import asyncio
from typing import Any

import httptools

Headers = list[tuple[bytes, bytes]]

MOST_BUFFERED = 256 * 1024
"""Bytes of a stream that wait for a slow caller before the upstream is slowed down too."""


class Died(OSError):
    """The upstream took the call and went away before its answer was whole."""


class Silent(Died, TimeoutError):
    """The upstream took the call and sent nothing for too long."""


class Connection(asyncio.Protocol):
    """A connection. It parses each reply as it comes; a reply is waited for whole, or, as an event stream, in parts."""

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
        self._fault: Died | None = None
        self.status = 0
        self.headers: Headers = []
        self.streaming = False
        self.complete = False
        self.reusable = False
        """Whether another call can be made, once this reply is complete."""
        self.closed = False
        self.since = 0.0
        """When the last byte went or came, in seconds of the loop's clock."""

    async def call(self, request: bytes, without_body: bool) -> bytes:
        """Sends a request; returns the body, or the first bytes of an event stream.

        Args:
            request: head and body.
            without_body: whether the reply has none, whatever its head says (to HEAD).

        Raises:
            Died, Silent: no whole reply.
        """
        self.headers = []
        self.status = 0
        self.streaming = self.complete = self._sized = False
        self._without_body = without_body
        self.since = self._loop.time()
        if not self.closed:  # an upstream may go away between two calls
            self._transport.write(request)
        return await self.read()

    @property
    def drained(self) -> bool:
        """Whether the reply has come whole and has been read."""
        return self.complete and not self._chunks

    async def read(self) -> bytes:
        """The whole body, or the next bytes of a stream; empty at its end.

        Raises:
            Died, Silent: there will be no more, and this is not the end.
        """
        if not self.complete and (not self._chunks or not self.streaming):
            if self._fault is not None or self.closed:
                raise self._fault or Died("the connection was closed")
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

    def abort(self, fault: Died | None = None) -> None:
        """Closes it at once; who waits gets the fault."""
        self._fail(fault or Died("the call was given up"))
        if self._transport is not None:
            self._transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        self.since = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.abort(Died(f"its answer is not HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone; where a reply told no length, that is its end."""
        if self.status and not self.complete and not self._sized and error is None:
            self.on_message_complete()
        self._fail(Died(str(error) if error is not None else "it closed the connection"))

    # Called by the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        name = name.lower()
        self._sized |= name in (b"content-length", b"transfer-encoding")
        self.streaming |= name == b"content-type" and value.startswith(b"text/event-stream")
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is there."""
        self.status = self._parser.get_status_code()
        self.streaming &= self.status < 400
        if self._without_body:
            self.on_message_complete()

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        self._chunks.append(body)
        if self.streaming:
            self._buffered += len(body)
            if self._buffered > MOST_BUFFERED and not self._paused:
                self._paused = True
                self._transport.pause_reading()
            self._wake()

    def on_message_complete(self) -> None:
        """The reply is whole, unless it was only word that one will come (1xx)."""
        if self.status < 200:
            self.headers, self.status = [], 0
            return
        self.complete = True
        self.reusable = self._sized and not self._without_body and self._parser.should_keep_alive()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, fault: Died) -> None:
        self.closed = True
        self.reusable = False
        if self._fault is None:
            self._fault = fault
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(fault)
