"""Read requests and send responses over ASGI; a framework would cost more per call than all other code."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from stepstream.services.gateway.errors import GatewayError, error_body
from stepstream.services.http_server import CONNECTION, LimitedProtocol

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")


class Disconnected(Exception):
    """The caller disconnected before its request was read."""


async def read_body(receive: Receive) -> bytes:
    """Return the request's body, which the server limits.

    Raises:
        Disconnected: the caller disconnected.
    """
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        parts.append(message.get("body", b""))
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
        self._connection: LimitedProtocol = scope["extensions"][CONNECTION]
        self._connection.on_disconnect = self._cancel
        if self._connection.disconnected:
            self._cancel()

    def stop(self) -> None:
        """Stop watching: before the response's last byte, after which a caller may disconnect."""
        if self._connection.on_disconnect == self._cancel:  # the next request may have begun
            self._connection.on_disconnect = None

    def _cancel(self) -> None:
        self.disconnected = True
        assert self._task is not None
        self._task.cancel()
