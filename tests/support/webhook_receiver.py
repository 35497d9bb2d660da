"""Receive webhook messages over HTTP."""

import base64
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


class Receiver:
    """An HTTP server that answers with scripted statuses, then 204, and notes the requests."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.results: list[str] = []
        self.held = threading.Event()
        self.held.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.held.wait()
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.requests.append(({k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def close(self) -> None:
        self.held.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
