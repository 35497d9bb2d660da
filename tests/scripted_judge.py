"""A judge on the network that says what it is told to: the last answer again and again."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import orjson


def reply(content: Any) -> bytes:
    """A reply of the chat API with this text."""
    return orjson.dumps({"choices": [{"message": {"content": content}}]})


@contextmanager
def served(*answers: tuple[int, bytes]) -> Iterator[tuple[str, list[Any]]]:
    """Gives (base address, what was asked: path, authorization, body)."""
    seen: list[Any] = []
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            seen.append((self.path, self.headers.get("authorization"), orjson.loads(body)))
            status, content = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

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
