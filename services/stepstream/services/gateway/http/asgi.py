"""Read requests and send responses over ASGI; a framework would cost more per call than all other code."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from stepstream.services.gateway.errors import GatewayError, TooLarge, error_body
from stepstream.services.gateway.http.exchange import EXTENSION, Exchange

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

MAX_BODY = 64 * 1_048_576
"""Bytes."""
JSON = (b"content-type", b"application/json")


class Disconnected(Exception):
    """The caller disconnected before its request was read."""


async def read_body(receive: Receive) -> bytes:
    """Return the request's body.

    Raises:
        Disconnected: the caller disconnected.
        TooLarge: the body exceeds `MAX_BODY` bytes.
    """
    parts = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY:
            raise TooLarge(f"the body is larger than {MAX_BODY} bytes")
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def respond(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """Send a whole response."""
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def respond_error(send: Send, error: GatewayError, body: bytes = b"", headers: Headers | None = None) -> None:
    """Send an error; `body` overrides OpenAI's form for clients of another protocol."""
    all_headers = [JSON, *error.headers, *(headers or [])]
    await respond(send, error.status, body or error_body(str(error), error.type), all_headers)


class CancelOnDisconnect:
    """Cancels the current task when the caller of its request disconnects."""

    def __init__(self, scope: Scope) -> None:
        self.disconnected = False
        """True: this is why the task was cancelled."""
        self._task = asyncio.current_task()
        self._exchange: Exchange = scope["extensions"][EXTENSION]
        self._exchange.on_disconnect = self._cancel
        if self._exchange.disconnected:
            self._cancel()

    def stop(self) -> None:
        """Stop watching: before the response's last byte, after which a caller may disconnect."""
        self._exchange.on_disconnect = None

    def _cancel(self) -> None:
        self.disconnected = True
        assert self._task is not None
        self._task.cancel()
