"""Forward TLS connections to a plain port of this machine; clients need a certificate of the authority."""

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self


class TlsFront:
    """A listening port; as a context manager, closed at its end."""

    def __init__(self, target: int, certificate: Path, authority: Path) -> None:
        """Listen on a free port, `port`."""
        self._target = target
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._context.load_verify_locations(authority)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(connection,), daemon=True).start()

    def _forward(self, connection: socket.socket) -> None:
        with (
            connection,
            suppress(OSError),
            self._context.wrap_socket(connection, server_side=True) as secured,
            socket.create_connection(("127.0.0.1", self._target)) as upstream,
        ):
            back = threading.Thread(target=_copy, args=(upstream, secured), daemon=True)
            back.start()
            _copy(secured, upstream)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
