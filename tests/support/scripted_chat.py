"""Serve chat completions over HTTP by a rule: a stand-in for a paid model at the edge of the network."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import orjson


class ScriptedChat:
    """Server in a thread. `rule` gets the request and returns the text of the answer, a choice, or a status code."""

    def __init__(self, rule: Callable[[dict[str, Any]], str | int | dict[str, Any]]) -> None:
        self.rule = rule
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = orjson.loads(self.rfile.read(int(self.headers["content-length"])))
                server.requests.append(request)
                server.headers.append({name.lower(): value for name, value in self.headers.items()})
                answer = server.rule(request)
                status = 200
                body: dict[str, Any]
                if isinstance(answer, int):
                    status, body = answer, {"error": {"message": "refused"}}
                else:
                    choice = answer if isinstance(answer, dict) else {"message": {"content": answer}}
                    body = {"choices": [choice], "usage": {"total_tokens": 10}}
                content = orjson.dumps(body)
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
