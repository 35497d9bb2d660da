"""The client authenticates by user and password, or by a token alone, which it renews."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import clickhouse_connect
import pytest
from pydantic import SecretStr
from stack_fixtures import with_settings
from token_server import TokenServer, token_server

from stepstream.config import Settings, SettingsError
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


@pytest.mark.parametrize("token", ["a-token", ""])
def test_a_redirect_of_clickhouse_is_an_error_and_carries_nothing_to_another_host(
    refusing: tuple[str, list[str]], token: str
) -> None:
    other, seen = refusing
    given: list[str] = []

    class Redirect(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            given.append(self.headers.get("authorization", ""))
            self.send_response(307)
            self.send_header("location", other.replace("127.0.0.1", "localhost") + self.path)
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Redirect) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        fields = {"url": f"http://127.0.0.1:{server.server_port}", "password": "p", "access_token": token}
        wanted = Settings().clickhouse.model_validate(fields)
        with pytest.raises(StoreUnavailableError, match="status 307"):
            connect(with_settings(Settings(), clickhouse=dict(wanted)), timeout_s=5.0)
        server.shutdown()
        thread.join()
    assert given
    assert all(given)
    assert seen == []


def test_the_environment_s_proxy_is_used_unless_it_excepts_the_host(
    refusing: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, seen = refusing
    store = with_settings(Settings(), clickhouse={"url": "http://store.invalid:8123", "password": SecretStr("p")})
    for name in ("HTTP_PROXY", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(StoreUnavailableError, match="status 403"):
        connect(store, timeout_s=5.0)
    assert seen.pop()
    monkeypatch.setenv("no_proxy", "store.invalid")
    with pytest.raises(StoreUnavailableError):
        connect(store, timeout_s=5.0)
    assert seen == []


@pytest.fixture
def renewing() -> Iterator[tuple[str, list[str], TokenServer]]:
    """A ClickHouse that takes only the newest token, the tokens that it got, and the token server."""
    seen: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = self.rfile.read(int(self.headers.get("content-length") or 0))
            seen.append(self.headers.get("authorization", "").removeprefix("Bearer "))
            allowed = seen[-1] == f"token-{tokens.given}"
            body = b"26.3.1\tUTC\n" if b"version()" in query else b""
            body = body if allowed else b"Code: 516. DB::Exception: Authentication failed"
            self.send_response(200 if allowed else 403)
            if not allowed:
                self.send_header("X-ClickHouse-Exception-Code", "516")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    with token_server() as tokens, HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", seen, tokens
        server.shutdown()
        thread.join()


def of_tokens(url: str, tokens: TokenServer, **fields: Any) -> Settings:
    return with_settings(Settings(), clickhouse={"url": url, **tokens.settings, **fields})


def test_tokens_come_from_the_token_server_and_are_renewed_when_they_end(
    renewing: tuple[str, list[str], TokenServer],
) -> None:
    url, seen, tokens = renewing
    tokens.life_s = 0.0
    client = connect(of_tokens(url, tokens), timeout_s=5.0)
    client.command("SELECT 1")
    assert set(seen) == {"token-1"}
    tokens.given += 1  # the token has ended
    client.command("SELECT 1")
    assert seen[-2:] == ["token-1", "token-3"]
    client.close()


def test_a_token_server_that_refuses_is_named_with_the_settings_to_check(
    renewing: tuple[str, list[str], TokenServer],
) -> None:
    url, seen, tokens = renewing
    tokens.refuses = True
    with pytest.raises(StoreUnavailableError, match=r"gave no token .*STEPSTREAM_CLICKHOUSE_OAUTH_TOKEN_URL"):
        connect(of_tokens(url, tokens), timeout_s=5.0)
    assert seen == []


def test_two_ways_to_authenticate_are_refused(renewing: tuple[str, list[str], TokenServer]) -> None:
    url, _, tokens = renewing
    for fields in ({"access_token": SecretStr("a")}, {"oauth_client_id": ""}):
        with pytest.raises(SettingsError, match=r"clickhouse\.oauth_token_url"):
            connect(of_tokens(url, tokens, **fields), timeout_s=5.0)


@pytest.mark.parametrize(
    "fields",
    [
        {"access_token": SecretStr("a")},
        {"oauth_token_url": "http://id/token", "oauth_client_id": "me"},
        {"password": SecretStr("p")},
    ],
    ids=["token", "token server", "password"],
)
def test_a_certificate_beside_other_credentials_only_opens_the_connection(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {}
    monkeypatch.setattr(clickhouse_connect, "get_client", lambda **given: options.update(given))
    connect(with_settings(Settings(), clickhouse={"url": "https://a", "certificate_location": "c.pem", **fields}))
    assert options["tls_mode"] == "strict"
