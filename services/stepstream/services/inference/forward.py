"""Forward chat completions to vLLM's server, which renders, samples and parses, and relay its answer as it comes."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

import aiohttp

from stepstream.services.inference.request_fields import RequestError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_PATH = "/v1/chat/completions"
_CLOSED = 499  # as nginx counts requests whose caller left


class Server(Protocol):
    """An engine that is an HTTP server itself: `VllmEngine`."""

    def post(self, path: str, body: bytes) -> Any:
        """Return the context manager of a request to the server; raises aiohttp.ClientError within."""

    async def metrics(self) -> bytes:
        """Return the server's metrics in Prometheus' text format."""


class ChatForwarder:
    """Answers chat completions of a worker whose engine is a server itself."""

    def __init__(self, engine: Server) -> None:
        self._engine = engine

    async def __call__(self, body: bytes, receive: Receive, send: Send) -> int:
        """Relay one answer and return its status; frees vLLM's resources if the caller leaves.

        Raises:
            RequestError: 503, vLLM does not answer.
        """
        relay = asyncio.create_task(self._relay(body, send))
        left = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({relay, left}, return_when=asyncio.FIRST_COMPLETED)
            return relay.result() if relay.done() else _CLOSED
        finally:
            for task in (relay, left):
                task.cancel()
            await asyncio.gather(relay, left, return_exceptions=True)

    async def metrics(self) -> bytes:
        """Return vLLM's own metrics in Prometheus' text format."""
        return await self._engine.metrics()

    async def _relay(self, body: bytes, send: Send) -> int:
        started = False
        try:
            async with self._engine.post(_PATH, body) as answer:
                headers = [(b"content-type", answer.headers.get("content-type", "application/json").encode())]
                if (length := answer.headers.get("content-length")) is not None:
                    headers.append((b"content-length", length.encode()))
                await send({"type": "http.response.start", "status": answer.status, "headers": headers})
                started = True
                async for part in answer.content.iter_any():
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
                return int(answer.status)
        except (aiohttp.ClientError, OSError) as error:
            if started:
                raise  # the server then cuts the connection, which the caller sees
            raise RequestError(503, f"vLLM does not answer: {error or type(error).__name__}") from error


async def _left(receive: Receive) -> None:
    """Return when the caller has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
