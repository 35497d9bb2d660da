"""Relay a server's answer, and end with the caller or with the server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from stepstream.services.inference.forward import ChatForwarder
from stepstream.services.inference.request_fields import RequestError


class Upstream:
    """A server whose stream has two parts; the second waits for `go`."""

    def __init__(self) -> None:
        self.go, self.left = asyncio.Event(), asyncio.Event()
        self.url = ""
        self.http: aiohttp.ClientSession

    def post(self, path: str, body: bytes) -> Any:
        return self.http.post(f"{self.url}{path}", data=body)

    async def metrics(self) -> bytes:
        return b""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if await request.read() == b"refuse":
            return web.Response(status=400, text="refused")
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        await reply.write(b"data: 1\n\n")
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        await reply.write(b"data: 2\n\n")
        return reply


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    server = Upstream()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession() as server.http:
        yield server
    await runner.cleanup()


class Caller:
    """An ASGI connection."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.some = asyncio.Event()
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if message.get("body"):
            self.some.set()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def test_parts_are_relayed_as_they_come() -> None:
    async with upstream() as server:
        caller = Caller()
        task = asyncio.create_task(ChatForwarder(server)(b"", caller.receive, caller.send))
        await caller.some.wait()
        assert caller.body == b"data: 1\n\n"
        server.go.set()
        assert await task == 200
        assert caller.body == b"data: 1\n\ndata: 2\n\n"
        assert dict(caller.sent[0]["headers"])[b"content-type"] == b"text/event-stream"
        assert caller.sent[-1].get("more_body", False) is False


async def test_a_refusal_is_relayed_whole() -> None:
    async with upstream() as server:
        caller = Caller()
        assert await ChatForwarder(server)(b"refuse", caller.receive, caller.send) == 400
        assert caller.body == b"refused"


async def test_a_caller_that_leaves_ends_the_request() -> None:
    async with upstream() as server:
        caller = Caller()
        task = asyncio.create_task(ChatForwarder(server)(b"", caller.receive, caller.send))
        await caller.some.wait()
        caller.gone.set()
        assert await task == 499
        await asyncio.wait_for(server.left.wait(), 20)


async def test_a_server_that_is_away_is_a_503() -> None:
    async with upstream() as server:
        server.url = "http://127.0.0.1:9"
        caller = Caller()
        with pytest.raises(RequestError) as raised:
            await ChatForwarder(server)(b"", caller.receive, caller.send)
        assert raised.value.status == 503
        assert caller.sent == []
