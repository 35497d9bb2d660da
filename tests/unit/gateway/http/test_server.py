"""The server handles requests that are split, pipelined, incomplete or malformed, and callers that disconnect."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from stepstream.services.gateway.http.asgi import CancelOnDisconnect, read_body, respond
from stepstream.services.gateway.http.server import HttpServerProtocol

App = Callable[[Any, Any, Any], Awaitable[None]]


class Caller:
    """One connection to a server; `state`: the server's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: ServerState) -> None:
        self.reader, self.writer, self.state = reader, writer, state

    def send(self, text: str) -> None:
        self.writer.write(text.replace("\n", "\r\n").encode())

    async def reply(self) -> tuple[str, str]:
        """Read head, in lower case, and body of the next response with a content length."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        return head, (await self.reader.readexactly(length)).decode()

    async def rest(self) -> str:
        """Read up to the connection's end."""
        return (await self.reader.read()).decode()


@asynccontextmanager
async def serving(app: App, keep_alive_s: float = 60.0) -> AsyncIterator[Caller]:
    config, state = SimpleNamespace(loaded_app=app, timeout_keep_alive=keep_alive_s), ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: HttpServerProtocol(cast(Config, config), state, {}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    async with server:
        yield Caller(reader, writer, state)
        writer.close()


async def echo(scope: Any, receive: Any, send: Any) -> None:
    text = f"{scope['method']} {scope['path']} {scope['query_string'].decode()} {(await read_body(receive)).decode()}"
    await respond(send, 200, text.encode(), [(b"content-type", b"text/plain")])


async def streamed(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for part in (b"one", b"two"):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def test_a_connection_is_reused_and_a_body_may_come_in_pieces() -> None:
    async with serving(echo) as caller:
        caller.send("POST /a%20b?c=d HTTP/1.1\ncontent-length: 5\n\nhe")
        while not caller.state.tasks:  # the application begins before the body is complete
            await asyncio.sleep(0)
        caller.send("llo")
        assert (await caller.reply())[1] == "POST /a b c=d hello"
        caller.send("GET / HTTP/1.1\n\n")
        assert (await caller.reply())[1] == "GET /  "


async def test_pipelined_requests_are_answered_in_order() -> None:
    turns: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        turns.append(scope["path"])
        await asyncio.sleep(0)
        await echo(scope, receive, send)
        turns.append("")

    async with serving(app) as caller:
        caller.send("".join(f"POST /{n} HTTP/1.1\ncontent-length: 1\n\n{n}" for n in range(3)))
        assert [(await caller.reply())[1] for _ in range(3)] == ["POST /0  0", "POST /1  1", "POST /2  2"]
    assert turns == ["/0", "", "/1", "", "/2", ""]


async def test_a_stream_is_chunked_and_in_http_1_0_ends_with_the_connection() -> None:
    async with serving(streamed) as caller:
        caller.send("GET / HTTP/1.1\nconnection: close\n\n")
        head, _, body = (await caller.rest()).partition("\r\n\r\n")
        assert body == "3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
        assert "transfer-encoding: chunked" in head
        assert "connection: close" in head
    async with serving(streamed) as caller:
        caller.send("GET / HTTP/1.0\n\n")
        assert (await caller.rest()).partition("\r\n\r\n")[2] == "onetwo"


async def test_a_response_to_head_has_no_body() -> None:
    async with serving(echo) as caller:
        caller.send("HEAD / HTTP/1.1\nconnection: close\n\n")
        assert (await caller.rest()).endswith("content-length: 8\r\nconnection: close\r\n\r\n")


async def test_a_caller_that_expects_100_continue_gets_it() -> None:
    async with serving(echo) as caller:
        caller.send("POST / HTTP/1.1\ncontent-length: 2\nexpect: 100-continue\n\n")
        assert await caller.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        caller.send("hi")
        assert (await caller.reply())[1] == "POST /  hi"


@pytest.mark.parametrize("request_text", ["no http\n\n", "GET / HTTP/1.1\nbad header\n\n"])
async def test_a_malformed_request_gets_400(request_text: str) -> None:
    async with serving(echo) as caller:
        caller.send(request_text)
        assert (await caller.rest()).startswith("HTTP/1.1 400 ")


@pytest.mark.parametrize("header", [b"a\r\nb: c", b"a\nb", b"a\0b"])
async def test_an_invalid_response_header_gives_500(header: bytes) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, 200, b"", [(b"x", header)])

    async with serving(app) as caller:
        caller.send("GET / HTTP/1.1\n\n")
        head, body = await caller.reply()
        assert (head.split()[1], body) == ("500", "Internal Server Error")


async def test_a_disconnect_cancels_the_handler() -> None:
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    begun = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        canceller = CancelOnDisconnect(scope)
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set_result(canceller.disconnected)

    async with serving(app) as caller:
        caller.send("GET / HTTP/1.1\n\n")
        await begun.wait()
        caller.writer.close()
        assert await ended


async def test_a_disconnect_during_the_body_ends_the_request() -> None:
    async with serving(echo) as caller:
        caller.send("POST / HTTP/1.1\ncontent-length: 5\n\nhe")
        while not caller.state.tasks:
            await asyncio.sleep(0)
        caller.writer.close()
        while caller.state.tasks:
            await asyncio.sleep(0)
    assert not caller.state.connections


async def test_a_slow_caller_pauses_the_application_and_a_slow_application_the_caller() -> None:
    sent, read = 0, asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await read.wait()
        size = len(await read_body(receive))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64):
            await send({"type": "http.response.body", "body": b"x" * (1 << 20), "more_body": True})
            sent += 1
        await send({"type": "http.response.body", "body": b"%d" % size})

    async with serving(app) as caller:
        caller.send(f"POST / HTTP/1.1\nconnection: close\ncontent-length: {1 << 24}\n\n" + "y" * (1 << 24))
        while not caller.state.tasks:
            await asyncio.sleep(0)
        (connection,) = caller.state.connections
        while not cast(Any, connection)._paused:
            await asyncio.sleep(0)
        read.set()
        while cast(Any, connection).writable is None:
            await asyncio.sleep(0)
        assert sent < 64
        body = await caller.rest()
    assert body.endswith(f"{len(str(1 << 24)):x}\r\n{1 << 24}\r\n0\r\n\r\n")


async def test_idle_connections_close_and_shutdown_closes_the_rest_after_their_answers() -> None:
    async with serving(echo, keep_alive_s=0.01) as caller:
        assert await caller.rest() == ""
    resume = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await resume.wait()
        await echo(scope, receive, send)

    async with serving(app) as caller:
        caller.send("GET / HTTP/1.1\n\n")
        while not caller.state.tasks:
            await asyncio.sleep(0)
        for connection in caller.state.connections:
            connection.shutdown()
        resume.set()
        assert "connection: close" in await caller.rest()
    async with serving(app) as caller:
        while not caller.state.connections:
            await asyncio.sleep(0)
        for connection in caller.state.connections:
            connection.shutdown()
        assert await caller.rest() == ""
