"""Callers and upstreams that are slow, endless, silent, many or out of step harm neither the gateway nor other callers.

Each test of a caller holds its attack while other callers are served, and bounds the gateway's memory.
"""

import asyncio
import contextlib
import json
import resource
import select
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import psutil
import pytest
from gateway_fixtures import gateway_process, gateway_settings
from scripted_upstream import ScriptedUpstream
from service_process import ServiceProcess
from stack_fixtures import with_settings
from waiting import TIMEOUT_S, wait_until

from stepstream.config import load
from stepstream.embedded.addresses import isolated
from stepstream.embedded.ports import free_block

MB = 1 << 20
LIMITS = {"header_kb": 16, "header_s": 2.0, "body_mb": 4, "bodies_mb": 16, "body_s": 2.0, "write_s": 2.0}
CALL = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "q"}]}).encode()
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
POST = b"POST /v1/feedback HTTP/1.1\r\ncontent-type: application/json\r\n"
CHUNKED_POST = POST + b"transfer-encoding: chunked\r\n\r\n"
SLOW_POST = POST + b"content-length: 1000\r\n\r\n"
CHUNK = b"10000\r\n" + b"x" * 65536 + b"\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


def post(body: bytes, *headers: str, path: str = "/v1/chat/completions") -> bytes:
    """Return the bytes of a request."""
    lines = [f"POST {path} HTTP/1.1", "host: gateway", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.fixture(scope="module")
def provider_port() -> int:
    return free_block(1)


@pytest.fixture(scope="module")
def gateway(
    upstream: ScriptedUpstream, provider_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    """A gateway with tight limits, and without Kafka: nothing here reads its events."""
    folder = tmp_path_factory.mktemp("hostile")
    provider = {"name": "hostile", "base_url": f"http://127.0.0.1:{provider_port}", "models": ["hostile"]}
    settings = gateway_settings(isolated(load({}), folder), upstream)
    document = with_settings(settings, http=LIMITS).model_dump()
    document["gateway"] |= {"providers": [provider], "answer_mb": 4, "shutdown_s": 1.0}
    document["gateway"] |= {"upstream_silence_s": 2.0, "upstream_deadline_s": 2.0}
    with gateway_process(type(settings).model_validate(document), folder / "gateway.log") as process:
        yield process


class Door:
    """The gateway's port and process."""

    def __init__(self, process: ServiceProcess) -> None:
        self.port = process.settings.gateway.port
        self._process = psutil.Process(process.pid)
        self._rss_before = self.rss()

    def rss(self) -> int:
        return int(self._process.memory_info().rss)

    def grown_mb(self) -> float:
        """Return the growth of the gateway's memory since the test's start."""
        return (self.rss() - self._rss_before) / MB

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def call(self, model: str = "demo", **more: Any) -> tuple[int, str]:
        """Make an honest call; return status and body."""
        body = {"model": model, "messages": [{"role": "user", "content": "q"}], **more}
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TIMEOUT_S)) as session,
            session.post(f"http://127.0.0.1:{self.port}/v1/chat/completions", json=body) as reply,
        ):
            return reply.status, await reply.text()

    async def serves_others(self) -> None:
        """Check that another caller gets its answer."""
        status, body = await self.call()
        assert (status, json.loads(body)["choices"][0]["message"]["content"]) == (200, "hello")


@pytest.fixture
async def door(gateway: ServiceProcess) -> Door:
    door = Door(gateway)
    await door.serves_others()
    return door


@asynccontextmanager
async def callers(door: Door, count: int) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """Open connections to the gateway; close them at the end."""
    async with AsyncExitStack() as stack:
        connections = []
        for _ in range(count):
            connections.append(await door.connect())
            stack.callback(connections[-1][1].close)
        yield connections


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, part: bytes, pause_s: float = 0.0) -> bytes:
    """Send `part` without end; return what the gateway answers when it ends that."""
    answer = asyncio.ensure_future(reader.read())
    with contextlib.suppress(ConnectionError):
        while not answer.done():
            writer.write(part)
            await writer.drain()
            await asyncio.wait([answer], timeout=pause_s)
    try:
        return await asyncio.wait_for(answer, TIMEOUT_S)
    except ConnectionError:
        return b""


# Callers


@pytest.mark.parametrize(
    ("begin", "part", "pause_s", "status"),
    [
        (b"GET / HTTP/1.1\r\n", b"a: " + b"b" * 65536, 0.0, b"431"),
        (b"GET / HTTP/1.1\r\n", b"a: b\r\n" * 8192, 0.0, b"431"),
        (CHUNKED_POST + b"0\r\n", b"a: b\r\n" * 8192, 0.0, b"431"),
        (CHUNKED_POST, CHUNK, 0.0, b"413 503"),  # 503: with the others, it is more than all bodies may be
        (b"GET / HTTP/1.1\r\n", b"a", 0.1, b"408"),
        (SLOW_POST, b"a", 0.1, b"408"),
    ],
    ids=["endless header", "endless headers", "endless trailers", "endless body", "slow head", "slow body"],
)
async def test_an_endless_or_slow_request_is_refused(
    door: Door, begin: bytes, part: bytes, pause_s: float, status: bytes
) -> None:
    async with callers(door, 20) as connections:
        for _, writer in connections:
            writer.write(begin)
        attacks = [asyncio.ensure_future(flood(*connection, part, pause_s)) for connection in connections]
        await door.serves_others()
        answers = await asyncio.gather(*attacks)
    statuses = {answer.split()[1] for answer in answers if answer}
    assert statuses
    assert statuses <= set(status.split())
    assert door.grown_mb() < 64


async def test_half_bodies_together_take_bounded_memory_and_end_with_their_callers(door: Door) -> None:
    half = post(b"x" * (4 * MB))[: 2 * MB]
    async with callers(door, 40) as connections:

        async def send(writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                writer.write(half)
                await writer.drain()

        await asyncio.gather(*(send(writer) for _, writer in connections))
        await door.serves_others()
        assert door.grown_mb() < 64
    await door.serves_others()


async def test_a_caller_that_takes_no_answer_is_cut(door: Door, upstream: ScriptedUpstream) -> None:
    upstream.reply, upstream.tokens = lambda request: "x" * (3 * MB), False
    try:
        with contextlib.ExitStack() as stack:
            slow = []
            for _ in range(5):
                slow.append(stack.enter_context(socket.socket()))
                slow[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                slow[-1].connect(("127.0.0.1", door.port))
                slow[-1].sendall(post(CALL) * 8)  # the kernel may hold the first answer
            ended = select.poll()
            for each in slow:
                ended.register(each, select.POLLHUP)

            def all_cut() -> bool:
                return len(ended.poll(0)) == len(slow)

            await asyncio.to_thread(wait_until, all_cut, "the gateway cuts the connections")
    finally:
        upstream.reply, upstream.tokens = lambda request: "hello", True
    await door.serves_others()
    assert door.grown_mb() < 96


@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_call_that_asks_for_http_2_is_answered(door: Door, pieces: int) -> None:
    request = post(CALL, "connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAEAAEAAAAIAAAAB")
    cut = len(request) if pieces == 1 else len(request) - len(CALL)
    async with callers(door, 1) as [(reader, writer)]:
        for part in (request[:cut], request[cut:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
    assert head.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("origin: https://evil.example", 403),
        ("host: gateway.evil.example", 403),
        ("content-type: text/plain", 415),
        ("x-any: other", 202),
    ],
    ids=["origin", "host", "content type", "none of them"],
)
async def test_a_page_of_another_site_posts_no_feedback(door: Door, header: str, status: int) -> None:
    name, _, value = header.partition(": ")
    headers = {"content-type": "application/json", name: value}
    feedback = {"trajectory_id": "t", "name": "thumbs", "value": 1}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TIMEOUT_S)) as session,
        session.post(f"http://127.0.0.1:{door.port}/v1/feedback", data=json.dumps(feedback), headers=headers) as reply,
    ):
        assert reply.status == status


async def test_a_body_with_two_lengths_is_refused(door: Door) -> None:
    async with callers(door, 1) as [(reader, writer)]:
        writer.write(post(CALL, "transfer-encoding: chunked") + post(CALL))
        assert (await asyncio.wait_for(reader.read(), TIMEOUT_S)).split()[1] == b"400"
    await door.serves_others()


async def test_5000_silent_connections_leave_room_for_other_callers(door: Door) -> None:
    count = 5000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, count + 1000), hard), hard))
    async with callers(door, count) as connections:
        for _, writer in connections[::2]:
            with contextlib.suppress(ConnectionError):
                writer.write(b"GET / HTTP/1.1\r\nhost")  # half of them begin a head
        for _ in range(5):
            await door.serves_others()
        assert door.grown_mb() < 192
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await door.serves_others()


# Upstreams


@asynccontextmanager
async def provider(port: int, *answers: bytes, then: bytes = b"", more: bytes = b"") -> AsyncIterator[list[bytes]]:
    """Run a provider: the n-th request gets the n-th answer, followed by `then` without end; `more` comes later."""
    remaining = list(answers)
    requests: list[bytes] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                requests.append(head + await reader.readexactly(length))
                answer = remaining.pop(0) if remaining else b""
                writer.write(answer)
                if not answer:
                    await reader.read()  # silent until the gateway leaves
                    break
                while then:
                    writer.write(then)
                    await writer.drain()
                if answer.endswith(b"cut"):
                    break
                writer.write(more)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    async with server:
        yield requests
    for writer in writers:
        writer.transport.abort()
    await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


def completion(text: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    body = json.dumps({"id": "c", "object": "chat.completion", "model": "hostile", "choices": [choice]}).encode()
    return JSON + b"content-length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize(
    ("answer", "then", "status"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"a: " + b"b" * 65536, 502),
        (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 8192, 502),
        (JSON + b"transfer-encoding: chunked\r\n\r\n", CHUNK, 502),
        (JSON + b"\r\n", CHUNK, 502),
        (b"", b"", 504),
        (JSON + b"content-length: 10\r\n\r\ncut", b"", 502),
        (b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n", b"", 502),
        (b"nonsense\r\n\r\n", b"", 502),
    ],
    ids=["header", "headers", "chunks", "until the end", "silent", "cut", "upgraded", "no HTTP"],
)
async def test_a_hostile_answer_is_an_error_of_its_own_call_only(
    door: Door, provider_port: int, answer: bytes, then: bytes, status: int
) -> None:
    async with provider(provider_port, answer, then=then):
        bad = asyncio.ensure_future(door.call("hostile"))
        await door.serves_others()
        assert (await bad)[0] == status
    assert door.grown_mb() < 64


async def test_an_endless_stream_ends_with_an_error(door: Door, provider_port: int) -> None:
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "%b"}}]}\n\n' % (b"x" * 65536)
    chunk = b"%x\r\n%b\r\n" % (len(event), event)
    async with provider(provider_port, EVENTS + b"transfer-encoding: chunked\r\n\r\n", then=chunk):
        bad = asyncio.ensure_future(door.call("hostile", stream=True))
        await door.serves_others()
        status, body = await bad
    assert status == 200
    assert '"error"' in body.splitlines()[-2] + body.splitlines()[-1]
    assert door.grown_mb() < 96


async def test_bytes_on_an_idle_connection_reach_no_other_caller(door: Door, provider_port: int) -> None:
    async with provider(provider_port, completion("first"), completion("second"), more=completion("stolen")) as seen:
        for text in ("first", "second"):
            status, body = await door.call("hostile")
            assert (status, json.loads(body)["choices"][0]["message"]["content"]) == (200, text)
            await door.serves_others()  # the surplus bytes have arrived by now
        assert len(seen) == 2
