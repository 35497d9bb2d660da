"""Test that a token server that fails or redirects gets no further than an error with the settings to check."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import SecretStr
from running_server import running

from stepstream.config import ClickHouseSettings
from stepstream.core.oauth import TokenRefused, TokenSource

TOKEN = b'{"access_token":"t0ken","expires_in":600}'


class Answers:
    """A server on loopback with one answer for every request."""

    def __init__(self, port: int, answer: bytes) -> None:
        self.url = f"http://127.0.0.1:{port}/token"
        self.answer = answer
        self.seen: list[str | None] = []
        """Credentials of each request."""


@contextmanager
def answering(answer: bytes) -> Iterator[Answers]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers["content-length"] or 0))
            answers.seen.append(self.headers["authorization"])
            self.wfile.write(answers.answer)

        do_GET = do_POST = answer

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    answers = Answers(server.server_port, answer)
    with running(server):
        yield answers


def source(url: str) -> TokenSource:
    config = ClickHouseSettings(oauth_token_url=url, oauth_client_id="sink", oauth_client_secret=SecretStr("secret"))
    return TokenSource("clickhouse", config)


def whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_carries_no_secret_to_another_host(status: int) -> None:
    with answering(whole(TOKEN)) as other, answering(b"") as server:
        there = other.url.replace("127.0.0.1", "localhost")
        server.answer = b"HTTP/1.1 %d Moved\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n" % (status, there.encode())
        with pytest.raises(TokenRefused, match="STEPSTREAM_CLICKHOUSE_OAUTH_TOKEN_URL"):
            source(server.url).token()
    assert server.seen[0]
    assert other.seen == []


@pytest.mark.parametrize("length", range(0, len(whole(TOKEN)), 5))
def test_an_answer_that_is_cut_is_no_token(length: int) -> None:
    with answering(whole(TOKEN)[:length]) as server, pytest.raises(TokenRefused, match="gave no token"):
        source(server.url).token()


def test_a_whole_answer_is_a_token() -> None:
    with answering(whole(TOKEN)) as server:
        assert source(server.url).token() == "t0ken"
