"""The client handles all framings of bodies, persistent connections, and every way in which a server disconnects."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from waiting import TIMEOUT_S

from stepstream.config import SettingsError, load
from stepstream.services.gateway.http.client import (
    ConnectionLost,
    HttpClient,
    Origin,
    Reply,
    ReplyTimeout,
    StreamInterrupted,
    Unreachable,
)
from stepstream.services.gateway.worker_pool import Upstream

DAY = timedelta(days=1)
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
async def serving(
    *answers: bytes | Serve, tls: ssl.SSLContext | None = None, **settings: Any
) -> AsyncIterator[ScriptedServer]:
    """Run a server whose n-th answer is the n-th of `answers`: bytes, or a function that writes them."""
    remaining = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        scripted.connections += 1
        try:
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
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    client = HttpClient(load({}).gateway.model_copy(update={"upstream_silence_s": TIMEOUT_S} | settings))
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
        host = up.origin.url.removeprefix("http://").removesuffix("/base").encode()
        assert up.requests[0] == b"POST /base/v1/x HTTP/1.1\r\nHost: %b\r\na: b\r\nContent-Length: 2\r\n\r\n{}" % host
        assert up.requests[1] == b"GET /base/v1/x HTTP/1.1\r\nHost: %b\r\na: b\r\n\r\n" % host


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


@pytest.mark.parametrize("kind", [b"text/event-stream", b"Text/Event-Stream; charset=utf-8"])
async def test_a_stream_comes_in_parts_and_its_connection_is_reused(kind: bytes) -> None:
    resume = asyncio.Event()

    async def stream(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED.replace(b"text/event-stream", kind) + b"3\r\none\r\n")
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
    parts = 640

    async def stream(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        for _number in range(parts):
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async with serving(stream) as up:
        reply = await up.call()
        content = reply._stream._response.content  # type: ignore[union-attr]
        while not content._protocol._reading_paused:
            await asyncio.sleep(0)
        waiting = await reply.more()
        assert 0 < len(waiting) < 16 * len(part)
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

    async with serving(wait, upstream_silence_s=0.05) as up:
        with pytest.raises(ReplyTimeout):
            await up.call()

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"3\r\none\r\n")
        await reader.read()

    async with serving(begin, upstream_silence_s=0.05) as up:
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


@pytest.mark.parametrize("late", [True, False], ids=["idle", "with the answer before"])
async def test_bytes_that_no_request_asked_for_reach_no_caller(late: bool) -> None:
    stolen = sized(b"of another caller")
    resume = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sized(b"one") + (b"" if late else stolen))
        await resume.wait()
        if late:
            writer.write(stolen)

    async with serving(serve, sized(b"two")) as up:

        def usable() -> list[object]:
            pool: Any = up.client._session.connector
            return [idle for connections in pool._conns.values() for idle, _ in connections if not idle.should_close]

        assert (await up.call()).body == b"one"
        assert len(usable()) == late
        resume.set()
        while usable():
            await asyncio.sleep(0)
        assert (await up.call()).body == b"two"
        assert up.connections == 2


@pytest.mark.parametrize("framing", [b"", b"transfer-encoding: chunked\r\n", b"content-length: 99999999\r\n"])
async def test_an_endless_answer_is_cut(framing: bytes) -> None:
    cut = asyncio.Event()

    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n")
        try:
            while True:
                writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                await writer.drain()
        finally:
            cut.set()

    async with serving(endless, answer_mb=1) as up:
        with pytest.raises(ConnectionLost, match="exceeds"):
            await up.call()
        await asyncio.wait_for(cut.wait(), TIMEOUT_S)


async def test_an_endless_stream_is_cut() -> None:
    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        while True:
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await writer.drain()

    async with serving(endless, answer_mb=1) as up:
        reply = await up.call()
        with pytest.raises(StreamInterrupted, match="exceeds"):
            await rest(reply)
        reply.close()


@pytest.mark.parametrize("header", [b"a: b\r\n", b"a: " + b"b" * 65536])
async def test_endless_headers_are_cut(header: bytes) -> None:
    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(header)
            await writer.drain()

    async with serving(endless) as up:
        with pytest.raises(ConnectionLost):
            await up.call()


async def test_a_provider_is_called_through_the_proxy_of_the_settings_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "NO_PROXY", "no_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with serving(sized(b"from the proxy"), sized(b"again")) as up:
        proxy = up.origin.url.removesuffix("/base")
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", "inside.test")
        assert up.client.origin("http://inside.test").proxy is None
        assert up.client.origin("http://localhost:8000").proxy is None
        up.origin = up.client.origin("http://model.test/api")
        assert (await up.call()).body == b"from the proxy"
        assert up.requests[0].startswith(b"POST http://model.test/api/v1/x HTTP/1.1\r\nHost: model.test\r\n")
    async with serving(sized(b"from the proxy")) as up:
        proxy = up.origin.url.removesuffix("/base").replace("//", "//user:secret@")
        up.client._proxy = proxy
        up.origin = up.client.origin("http://model.test")
        assert (await up.call()).body == b"from the proxy"
        assert b"proxy-authorization: basic dxnlcjpzzwnyzxq=" in up.requests[0].lower()


@pytest.mark.parametrize("text", ["proxy.test:3128", "10.0.0.1:3128", "[fd00::1]:3128", "u:p@proxy.test"])
async def test_a_proxy_may_lack_its_scheme(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", text)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with serving() as up:
        assert up.client.origin("https://model.test").proxy == f"http://{text}"


@pytest.mark.parametrize("text", ["socks5://u:secret@proxy.test:1080", "proxy.test:port", "http://[fd00::1", "http://"])
async def test_what_is_no_http_proxy_is_refused(text: str) -> None:
    async with serving() as up:
        up.client._proxy = text
        with pytest.raises(SettingsError, match=r"gateway.proxy .* is no HTTP proxy") as error:
            up.client.origin("https://model.test")
        assert "secret" not in str(error.value)


async def test_an_unreadable_file_of_authorities_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"ca.pem cannot be read"):
        HttpClient(load({}).gateway.model_copy(update={"ca_file": tmp_path / "ca.pem"}))


async def test_a_private_authority_is_trusted_if_the_settings_name_it(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    write_certificate(key, certificate)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    async with serving(sized(b"secret"), tls=tls, ca_file=certificate) as up:
        up.origin = Origin.of(up.origin.url.replace("http:", "https:"))
        assert (await up.call()).body == b"secret"
    async with serving(tls=tls) as up:
        up.origin = Origin.of(up.origin.url.replace("http:", "https:"))
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED") as error:
            await up.call()
        assert isinstance(error.value.__cause__, ssl.SSLError)


def write_certificate(key_file: Path, certificate_file: Path) -> None:
    """Write a key and its own certificate for 127.0.0.1, valid for a day."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - DAY, now + DAY)
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    certificate_file.write_bytes(certificate.public_bytes(encoding))
    form = serialization.PrivateFormat.PKCS8
    key_file.write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
