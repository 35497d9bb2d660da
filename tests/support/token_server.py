"""Give OAuth tokens to a client that knows the secret, each for a stated time."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import orjson
from pydantic import SecretStr
from running_server import running

CLIENT, SECRET, SCOPE = "sink", "a secret with $igns", "tables"


class TokenServer:
    """A server on loopback; its n-th token is `token-n`."""

    def __init__(self, port: int) -> None:
        self.settings: dict[str, Any] = {
            "oauth_token_url": f"http://127.0.0.1:{port}/token",
            "oauth_client_id": CLIENT,
            "oauth_client_secret": SecretStr(SECRET),
            "oauth_scope": SCOPE,
        }
        self.life_s = 600.0
        self.given = 0
        self.refuses = False


@contextmanager
def token_server() -> Iterator[TokenServer]:
    """Run the server."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            _, _, encoded = self.headers.get("Authorization", "").partition(" ")
            allowed = base64.b64decode(encoded).decode() == f"{CLIENT}:{SECRET.replace(' ', '%20').replace('$', '%24')}"
            allowed &= form == {"grant_type": ["client_credentials"], "scope": [SCOPE]} and not tokens.refuses
            tokens.given += allowed
            body = (
                {"access_token": f"token-{tokens.given}", "expires_in": tokens.life_s} if allowed else {"error": "no"}
            )
            self.send_response(200 if allowed else 401)
            self.end_headers()
            self.wfile.write(orjson.dumps(body))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tokens = TokenServer(server.server_port)
    with running(server):
        yield tokens
