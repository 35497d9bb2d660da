"""Serve the chat API of a judge with scripted replies."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import orjson


def reply(content: Any) -> bytes:
    """Return a reply of the chat API with this text."""
    return orjson.dumps({"choices": [{"message": {"content": content}}]})


@contextmanager
def serve_replies(*answers: tuple[int, bytes]) -> Iterator[tuple[str, list[Any]]]:
    """Yield (base address, requests as (path, authorization, body)); the last answer repeats."""
    remaining = list(answers)
    with serve_function(lambda body: remaining.pop(0) if len(remaining) > 1 else remaining[0]) as judge:
        yield judge


@contextmanager
def serve_function(answer: Callable[[Any], tuple[int, bytes]]) -> Iterator[tuple[str, list[Any]]]:
    """As `serve_replies`, with replies computed from the request body by `answer`.

    The content of a redirect is its target. A GET, as after a redirect, has no body and gets status 404.
    """
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            seen.append((self.path, self.headers.get("authorization"), orjson.loads(body)))
            status, content = answer(seen[-1][2])
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("location", content.decode())
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            seen.append((self.path, self.headers.get("authorization"), None))
            self.send_error(404)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
