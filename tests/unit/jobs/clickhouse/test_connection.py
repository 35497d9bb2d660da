"""The client authenticates by user and password, or by a token alone."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from stack_fixtures import with_settings

from stepstream.config import Settings
from stepstream.jobs.clickhouse.connection import StoreUnavailableError, connect


@pytest.fixture
def refusing() -> Iterator[tuple[str, list[str]]]:
    """Address of a server that refuses every request, and the credentials that it got."""
    seen: list[str] = []

    class Refuse(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            seen.append(self.headers.get("authorization", ""))
            self.send_response(403)
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refuse) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", seen
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("reads_only", [False, True])
@pytest.mark.parametrize(("token", "scheme"), [("a-token", "Bearer a-token"), ("", "Basic ")])
def test_a_token_replaces_user_and_password(
    refusing: tuple[str, list[str]], token: str, scheme: str, reads_only: bool
) -> None:
    url, seen = refusing
    fields = {"url": url, "user": "writer", "password": "p", "access_token": token}
    wanted = Settings().clickhouse.model_validate(fields)
    with pytest.raises(StoreUnavailableError):
        connect(with_settings(Settings(), clickhouse=dict(wanted)), timeout_s=5.0, reads_only=reads_only)
    assert seen
    assert all(header.startswith(scheme) for header in seen)
