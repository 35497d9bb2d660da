"""The client handles all framings of bodies, persistent connections, and every way in which a server disconnects."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from waiting import TIMEOUT_S

from stepstream.services.gateway.http.client import HttpClient, Origin, Reply, StreamInterrupted, Unreachable
from stepstream.services.gateway.http.connection import BUFFER_BYTES, ConnectionLost, ReplyTimeout
from stepstream.services.gateway.worker_pool import Upstream

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class ScriptedServer:
    """A client and its server with scripted answers."""

    def __init__(self, client: HttpClient, port: int) -> None:
        self.client = client
        self.upstream = Upstream("u")
        self.origin = Origin.of(f"http://127.0.0.1:{port}/base")
        self.requests: list[bytes] = []
        self.connections = 0

    async def call(self, method: str = "POST", body: bytes | None = b"{}") -> Reply:
        return await self.client.call(self.upstream, self.origin, method, "/v1/x", body, [(b"a", b"b")])


@asynccontextmanager
async def serving(*answers: bytes | Serve, silence_s: float = TIMEOUT_S) -> AsyncIterator[ScriptedServer]:
    """Run a server whose n-th answer is the n-th of `answers`: bytes, or a function that writes them."""
    remaining = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        scripted.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while remaining:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                scripted.requests.append(head + await reader.readexactly(int(length or 0)))
                answer = remaining.pop(0)
                if callable(answer):
                    await answer(reader, writer)
                else:
                    writer.write(answer)
                    await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = HttpClient(silence_s)
    scripted = ScriptedServer(client, server.sockets[0].getsockname()[1])
    try:
        yield scripted
    finally:
        assert scripted.upstream.in_flight == 0
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


async def test_a_connection_is_reused_and_requests_are_written() -> None:
    async with serving(sized(b"one", more=b"Retry-After: 3\r\nDate: now\r\n"), sized(b"two", b"429 Slow down")) as up:
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
async def test_bodies_of_every_framing_are_read(answer: bytes) -> None:
    async with serving(answer, answer) as up:
        for _ in range(2):
            assert (await up.call()).body == b"hello"


async def test_without_a_length_the_body_ends_with_the_connection() -> None:
    async with serving(b"HTTP/1.1 200 OK\r\n\r\nhello") as up:
        assert (await up.call()).body == b"hello"


async def test_a_reply_to_head_has_no_body() -> None:
    async with serving(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n") as up:
        assert (await up.call("HEAD", None)).body == b""


async def test_a_stream_comes_in_parts_and_its_connection_is_reused() -> None:
    resume = asyncio.Event()

    async def stream(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"3\r\none\r\n")
        await resume.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")

    async with serving(stream, sized(b"next")) as up:
        reply = await up.call()
        assert reply.streaming
        assert (reply.body, up.upstream.in_flight) == (b"one", 1)
        resume.set()
        assert await rest(reply) == b"onetwo"
        assert (await up.call()).body == b"next"
        assert up.connections == 1


async def test_reading_a_fast_stream_pauses_for_a_slow_caller() -> None:
    part = b"x" * 65536
    parts = 40 * BUFFER_BYTES // len(part)

    async def stream(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        for _number in range(parts):
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with serving(stream) as up:
        reply = await up.call()
        while not reply._connection._paused:  # type: ignore[union-attr]
            await asyncio.sleep(0)
        waiting = await reply.more()
        assert 0 < len(waiting) < 4 * BUFFER_BYTES
        assert len(reply.body) + len(waiting) + len((await rest(reply))[len(reply.body) :]) == parts * len(part)


async def test_a_broken_stream_raises_after_its_last_bytes() -> None:
    async with serving(CHUNKED + b"3\r\none\r\n") as up:
        reply = await up.call()
        with pytest.raises(StreamInterrupted, match="disconnected during its answer") as broke:
            await rest(reply)
        assert not broke.value.silent
        reply.close()


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhel", b"nonsense\r\n\r\n", CHUNKED + b"0\r\n\r\n"]
)
async def test_an_answer_that_is_cut_or_not_http_raises(answer: bytes) -> None:
    async with serving(answer) as up:
        with pytest.raises(ConnectionLost):
            await up.call()


async def test_a_silent_upstream_times_out() -> None:
    async def wait(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()  # until the client goes

    async with serving(wait, silence_s=0.05) as up:
        with pytest.raises(ReplyTimeout):
            await up.call()

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"3\r\none\r\n")
        await reader.read()

    async with serving(begin, silence_s=0.05) as up:
        reply = await up.call()
        with pytest.raises(StreamInterrupted, match="sent nothing more during its answer") as broke:
            await rest(reply)
        assert broke.value.silent
        reply.close()


async def test_an_upstream_that_does_not_listen_is_unreachable() -> None:
    async with serving() as up:
        up.origin = Origin.of("http://127.0.0.1:9")
        with pytest.raises(Unreachable):
            await up.call()


async def test_a_cancelled_call_cuts_its_connection() -> None:
    disconnected, connected = asyncio.Event(), asyncio.Event()

    async def wait(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        disconnected.set()

    async with serving(wait) as up:
        call = asyncio.create_task(up.call())
        await connected.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(disconnected.wait(), TIMEOUT_S)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://"])
def test_an_address_must_be_http_with_a_host(url: str) -> None:
    with pytest.raises(ValueError, match="no upstream's address"):
        Origin.of(url)


def test_the_host_header_has_an_unusual_port_and_brackets_around_ipv6() -> None:
    assert Origin.of("https://host/v1").authority == b"host"
    assert Origin.of("http://[::1]:8000").authority == b"[::1]:8000"
