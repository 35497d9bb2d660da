"""The little of ASGI that the gateway needs; a framework would cost more per call than all the rest."""

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
JSON = (b"content-type", b"application/json")


class Disconnected(Exception):
    """The caller went away before its request was read."""


async def read_body(receive: Receive) -> bytes:
    """The request's body.

    Raises:
        Disconnected: the caller went away.
        TooLarge: it has more than `MAX_BODY` bytes.
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
    """A whole response."""
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def respond_error(send: Send, error: GatewayError, body: bytes = b"", headers: Headers | None = None) -> None:
    """An error of the gateway's own; `body` where a protocol's clients read it differently from OpenAI's."""
    await respond(send, error.status, body or error_body(str(error), error.type), [JSON, *(headers or [])])


class Hangup:
    """Cancels the task that handles a request when its caller goes away; `gone` tells that this was why."""

    def __init__(self, scope: Scope) -> None:
        self.gone = False
        self._handler = asyncio.current_task()
        self._exchange: Exchange = scope["extensions"][EXTENSION]
        self._exchange.on_hangup = self._happened
        if self._exchange.gone:
            self._happened()

    def stop(self) -> None:
        """Call it before the response's last byte, after which a caller may well leave."""
        self._exchange.on_hangup = None

    def _happened(self) -> None:
        self.gone = True
        assert self._handler is not None
        self._handler.cancel()
