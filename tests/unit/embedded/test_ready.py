"""A readiness check of any address says whether the part answers, and never raises."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stepstream.config import ClickHouseSettings
from stepstream.embedded.ready import HttpReady, StoreReady


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Give one connection an answer; return the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nOk.\n"


@pytest.mark.parametrize("length", range(0, len(OK), 6))
def test_an_answer_that_is_cut_is_not_ready(length: int) -> None:
    with answering(OK[:length]) as url:
        assert not StoreReady(ClickHouseSettings(url=url))()


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.6\r\n", b"\x00\x00\x00\x05", b"HTTP/1.1 two\r\n\r\n"])
def test_a_service_of_another_protocol_is_not_ready(answer: bytes) -> None:
    with answering(answer) as url:
        assert not HttpReady(url, "Ok.")()


def test_an_answer_with_the_expected_text_is_ready() -> None:
    with answering(OK) as url:
        assert StoreReady(ClickHouseSettings(url=url))()
