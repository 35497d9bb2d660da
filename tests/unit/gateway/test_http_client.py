"""The client against servers of bytes: framings of bodies, kept connections, and every way to go away."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from stepstream.services.gateway.http.client import HttpClient, Origin, Reply, StreamBroke, Unreachable
from stepstream.services.gateway.http.connection import MOST_BUFFERED, Died, Silent
from stepstream.services.gateway.routing import Upstream

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Upstreams:
    """A client, and a server that answers each request as it is told."""

    def __init__(self, client: HttpClient, port: int) -> None:
        self.client = client
        self.upstream = Upstream("u")
        self.origin = Origin.of(f"http://127.0.0.1:{port}/base")
        self.requests: list[bytes] = []
        self.connections = 0

    async def call(self, method: str = "POST", body: bytes | None = b"{}") -> Reply:
        return await self.client.call(self.upstream, self.origin, method, "/v1/x", body, [(b"a", b"b")])


@asynccontextmanager
async def answering(*answers: bytes | Serve, silence_s: float = 10.0) -> AsyncIterator[Upstreams]:
    """The n-th request gets the n-th answer: bytes, or what a function does."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while left:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                made.requests.append(head + await reader.readexactly(int(length or 0)))
                answer = left.pop(0)
                if callable(answer):
                    await answer(reader, writer)
                else:
                    writer.write(answer)
                    await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = HttpClient(silence_s)
    made = Upstreams(client, server.sockets[0].getsockname()[1])
    try:
        yield made
    finally:
        assert made.upstream.in_flight == 0
        await client.close()
        server.close()
        await server.wait_closed()


def sized(body: bytes, status: bytes = b"200 OK", more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%b\r\n%b" % (status, len(body), more, body)


async def rest(reply: Reply) -> bytes:
    parts = [reply.body]
    while parts[-1]:
        parts.append(await reply.more())
    reply.close()
    return b"".join(parts)


async def test_a_connection_is_kept_and_the_request_is_as_asked() -> None:
    async with answering(sized(b"one", more=b"Retry-After: 3\r\nDate: now\r\n"), sized(b"two", b"429 Slow down")) as up:
        first = await up.call()
        assert (first.status, first.body, first.streaming) == (200, b"one", False)
        assert first.headers == [(b"retry-after", b"3")]
        assert (await up.call("GET", None)).status == 429
        assert up.connections == 1
        assert up.requests[0].startswith(b"POST /base/v1/x HTTP/1.1\r\nhost: " + up.origin.authority + b"\r\na: b\r\n")
        assert up.requests[0].endswith(b"content-length: 2\r\n\r\n{}")
        assert b"content-length" not in up.requests[1]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello",
    ],
)
async def test_bodies_of_every_framing(answer: bytes) -> None:
    async with answering(answer, answer) as up:
        for _ in range(2):
            assert (await up.call()).body == b"hello"


async def test_without_a_length_the_end_of_the_connection_is_the_end() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n\r\nhello") as up:
        assert (await up.call()).body == b"hello"


async def test_a_reply_to_head_has_no_body() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n") as up:
        assert (await up.call("HEAD", None)).body == b""


async def test_a_stream_comes_in_parts_and_its_connection_is_kept() -> None:
    go_on = asyncio.Event()

    async def stream(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"3\r\none\r\n")
        await go_on.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")

    async with answering(stream, sized(b"next")) as up:
        reply = await up.call()
        assert reply.streaming
        assert (reply.body, up.upstream.in_flight) == (b"one", 1)
        go_on.set()
        assert await rest(reply) == b"onetwo"
        assert (await up.call()).body == b"next"
        assert up.connections == 1


async def test_a_fast_stream_waits_for_a_slow_caller() -> None:
    part = b"x" * 65536
    parts = 40 * MOST_BUFFERED // len(part)

    async def stream(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        for _number in range(parts):
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with answering(stream) as up:
        reply = await up.call()
        await asyncio.sleep(0.2)  # time for the server to send all of it, if nobody stops it
        waiting = await reply.more()
        assert 0 < len(waiting) < 4 * MOST_BUFFERED
        assert len(reply.body) + len(waiting) + len((await rest(reply))[len(reply.body) :]) == parts * len(part)


async def test_a_stream_that_breaks_gives_what_there_was() -> None:
    async with answering(CHUNKED + b"3\r\none\r\n") as up:
        reply = await up.call()
        with pytest.raises(StreamBroke, match="went away in the middle of its answer") as broke:
            await rest(reply)
        assert not broke.value.silent
        reply.close()


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhel", b"nonsense\r\n\r\n", CHUNKED + b"0\r\n\r\n"]
)
async def test_an_answer_that_is_cut_or_is_none_is_told(answer: bytes) -> None:
    async with answering(answer) as up:
        with pytest.raises(Died):
            await up.call()


async def test_silence_is_given_up() -> None:
    async def wait(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()  # until the client goes

    async with answering(wait, silence_s=0.05) as up:
        with pytest.raises(Silent):
            await up.call()

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"3\r\none\r\n")
        await reader.read()

    async with answering(begin, silence_s=0.05) as up:
        reply = await up.call()
        with pytest.raises(StreamBroke, match="fell silent in the middle of its answer") as broke:
            await rest(reply)
        assert broke.value.silent
        reply.close()


async def test_nobody_there() -> None:
    async with answering() as up:
        up.origin = Origin.of("http://127.0.0.1:9")
        with pytest.raises(Unreachable):
            await up.call()


async def test_a_call_that_is_given_up_cuts_its_connection() -> None:
    gone, there = asyncio.Event(), asyncio.Event()

    async def wait(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        there.set()
        await reader.read()
        gone.set()

    async with answering(wait) as up:
        call = asyncio.create_task(up.call())
        await there.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(gone.wait(), 5)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="no address of an upstream"):
        Origin.of(url)


def test_authorities() -> None:
    assert Origin.of("https://host/v1").authority == b"host"
    assert Origin.of("http://[::1]:8000").authority == b"[::1]:8000"
