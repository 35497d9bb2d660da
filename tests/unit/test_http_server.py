"""The server handles requests that are split, pipelined, incomplete, malformed, slow or endless, and disconnects."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, cast

import pytest
from uvicorn.server import ServerState
from waiting import TIMEOUT_S

from stepstream.config import HttpSettings
from stepstream.services.gateway.http.asgi import CancelOnDisconnect, Disconnected, read_body, respond
from stepstream.services.http_connections import ConnectionTable
from stepstream.services.http_server import MAX_PIPELINED, WRITE_STEP, LimitedProtocol, ServerConfig

App = Callable[[Any, Any, Any], Awaitable[None]]


class Caller:
    """One connection to a server; `state`: the server's."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: ServerState, another: Any
    ) -> None:
        """`another` opens another connection."""
        self.reader, self.writer, self.state, self.another = reader, writer, state, another

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
async def serving(app: App, **limits: float) -> AsyncIterator[Caller]:
    config, state = ServerConfig(app, HttpSettings.model_validate(limits), lifespan="off"), ServerState()
    config.load()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: LimitedProtocol(config, state, {}), "127.0.0.1", 0)
    async with server, AsyncExitStack() as callers:

        async def connect() -> Caller:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            callers.callback(writer.close)
            return Caller(reader, writer, state, connect)

        yield await connect()


async def until(condition: Callable[[], object]) -> None:
    """Run the event loop until a condition is true."""

    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0)

    await asyncio.wait_for(poll(), TIMEOUT_S)


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
        await until(lambda: caller.state.tasks)  # the application begins before the body is complete
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


async def test_a_stream_is_chunked() -> None:
    async with serving(streamed) as caller:
        caller.send("GET / HTTP/1.1\nconnection: close\n\n")
        head, _, body = (await caller.rest()).partition("\r\n\r\n")
        assert body == "3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
        assert "transfer-encoding: chunked" in head
        assert "connection: close" in head


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
async def test_an_invalid_response_header_cuts_the_connection(header: bytes) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, 200, b"", [(b"x", header)])

    async with serving(app) as caller:
        caller.send("GET / HTTP/1.1\n\n")
        assert await caller.rest() == ""


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
        await until(lambda: caller.state.tasks)
        caller.writer.close()
        await until(lambda: not caller.state.tasks)
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
        await until(lambda: caller.state.tasks)
        (connection,) = caller.state.connections
        await until(lambda: cast(Any, connection).flow.read_paused)
        read.set()
        await until(lambda: cast(Any, connection).flow.write_paused)
        assert sent < 64
        body = await caller.rest()
    assert body.endswith(f"{len(str(1 << 24)):x}\r\n{1 << 24}\r\n0\r\n\r\n")


async def test_idle_connections_close_and_shutdown_closes_the_rest_after_their_answers() -> None:
    async with serving(echo, idle_s=0.01) as caller:
        assert await caller.rest() == ""
    resume = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await resume.wait()
        await echo(scope, receive, send)

    async with serving(app) as caller:
        caller.send("GET / HTTP/1.1\n\n")
        await until(lambda: caller.state.tasks)
        for connection in caller.state.connections:
            connection.shutdown()
        resume.set()
        assert "connection: close" in await caller.rest()
    async with serving(app) as caller:
        await until(lambda: caller.state.connections)
        for connection in caller.state.connections:
            connection.shutdown()
        assert await caller.rest() == ""


UPGRADE = "connection: Upgrade, HTTP2-Settings\nupgrade: h2c\nhttp2-settings: AAEAAEAAAAIAAAAB\n"


@pytest.mark.parametrize("pieces", [1, 2, 200])
async def test_a_request_that_wants_another_protocol_keeps_its_body(pieces: int) -> None:
    text = f"POST /a HTTP/1.1\n{UPGRADE}content-length: 5\n\nhelloGET /b HTTP/1.1\n{UPGRADE}\n".replace("\n", "\r\n")
    size = -(-len(text) // pieces)
    async with serving(echo) as caller:
        for start in range(0, len(text), size):
            caller.writer.write(text[start : start + size].encode())
            await caller.writer.drain()
            await asyncio.sleep(0)
        assert (await caller.reply())[1] == "POST /a  hello"
        assert (await caller.reply())[1] == "GET /b  "


async def refused(caller: Caller) -> tuple[int, str]:
    """Return status and message of a refusal, after which the connection ends."""
    head, _, body = (await asyncio.wait_for(caller.rest(), TIMEOUT_S)).partition("\r\n\r\n")
    assert "connection: close" in head
    return int(head.split()[1]), body


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1\n" + "a: b\n" * 400 + "\n",  # complete
        "GET / HTTP/1.1\n" + "a: b\n" * 400,
        "GET / HTTP/1.1\na: " + "b" * 2000,
        "GET /" + "b" * 2000,
        "POST / HTTP/1.1\ntransfer-encoding: chunked\n\n0\n" + "a: b\n" * 400,
        "POST / HTTP/1.1\ntransfer-encoding: chunked\n\n1;" + "a" * 2000,
    ],
)
async def test_endless_headers_trailers_and_extensions_get_431(head: str) -> None:
    async with serving(echo, header_kb=1) as caller:
        caller.send(head)
        assert (await refused(caller))[0] == 431


async def test_a_head_of_the_allowed_size_may_come_with_a_large_body() -> None:
    async with serving(echo, header_kb=1) as caller:
        caller.send(f"POST / HTTP/1.1\ncontent-length: 5000\n\n{'x' * 5000}")
        assert len((await caller.reply())[1]) == 5000 + len("POST /  ")


@pytest.mark.parametrize("framing", ["content-length: 9000000", "transfer-encoding: chunked"])
async def test_an_endless_body_gets_413_and_the_application_ends(framing: str) -> None:
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with pytest.raises(Disconnected):
            await read_body(receive)
        ended.set()

    async with serving(app, body_mb=1) as caller:
        caller.send(f"POST / HTTP/1.1\n{framing}\n\n200000\n" + "x" * (2 << 20))
        assert (await refused(caller))[0] == 413
        await asyncio.wait_for(ended.wait(), TIMEOUT_S)


async def test_bodies_of_all_requests_share_a_limit_until_their_responses() -> None:
    resume = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with suppress(Disconnected):
            size = len(await read_body(receive))
            await resume.wait()
            await respond(send, 200, b"%d" % size, [])

    size = 700_000
    request = f"POST / HTTP/1.1\ncontent-length: {size}\n\n" + "x" * size
    async with serving(app, bodies_mb=1) as first:
        second = await first.another()
        first.send(request)
        await until(lambda: any(cast(Any, each)._held == size for each in first.state.connections))
        second.send(request)
        assert (await refused(second))[0] == 503
        resume.set()
        assert (await first.reply())[1] == str(size)
        first.send(request)
        assert (await first.reply())[1] == str(size)


@pytest.mark.parametrize(("sent", "part"), [("GET / HT", "head"), ("POST / HTTP/1.1\ncontent-length: 5\n\nhe", "body")])
async def test_a_slow_head_or_body_gets_408(sent: str, part: str) -> None:
    async with serving(echo, header_s=0.05, body_s=0.05) as caller:
        caller.send(sent)
        status, message = await refused(caller)
        assert status == 408
        assert part in message


async def test_a_caller_that_does_not_take_its_response_is_cut() -> None:
    cut = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        CancelOnDisconnect(scope)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"x" * WRITE_STEP, "more_body": True})
        finally:
            cut.set()

    async with serving(app, write_s=0.05) as caller:
        caller.send("GET / HTTP/1.1\n\n")
        await asyncio.wait_for(cut.wait(), TIMEOUT_S)
        await until(lambda: not caller.state.connections)


async def test_a_connection_without_a_request_makes_room_for_a_new_one_and_a_busy_one_does_not() -> None:
    resume = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await resume.wait()
        await echo(scope, receive, send)

    async with serving(app, connections=2) as busy:
        busy.send("GET /busy HTTP/1.1\n\n")
        await until(lambda: busy.state.tasks)
        silent = await busy.another()
        await until(lambda: len(busy.state.connections) == 2)
        newer = await busy.another()
        newer.send("GET /newer HTTP/1.1\n\n")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(silent.rest(), TIMEOUT_S)
        await until(lambda: len(busy.state.tasks) == 2)
        assert (await refused(await busy.another()))[0] == 503
        resume.set()
        assert (await busy.reply())[1] == "GET /busy  "
        assert (await newer.reply())[1] == "GET /newer  "


async def test_endless_pipelined_requests_end_the_connection() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async with serving(app) as caller:
        caller.send("GET / HTTP/1.1\n\n" * (MAX_PIPELINED + 2))
        assert await asyncio.wait_for(caller.rest(), TIMEOUT_S) == ""
        for task in caller.state.tasks:
            task.cancel()


async def test_connect_is_refused() -> None:
    async with serving(echo) as caller:
        caller.send("CONNECT host:443 HTTP/1.1\n\n")
        assert (await refused(caller))[0] == 400


def test_open_files_bound_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepstream.services.http_connections._open_files", lambda: 1024)
    assert ConnectionTable(HttpSettings()).max_connections == 1024 - 256
