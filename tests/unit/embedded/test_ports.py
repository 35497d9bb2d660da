"""The error for a taken port names the process that holds it and the variable to set."""

import os
import socket
from collections.abc import Iterator

import pytest

from stepstream.embedded.errors import StackError
from stepstream.embedded.ports import Port, check_free, free_block, is_free


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as every server of the stack does
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server


def test_the_error_for_a_taken_port_names_process_owner_and_variable(listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    free = free_block(1)
    with pytest.raises(StackError) as error:
        check_free(
            [
                Port("127.0.0.1", free, "store", "STEPSTREAM_STORE_PORT"),
                Port("127.0.0.1", port, "broker", "STEPSTREAM_BROKER_PORT"),
            ]
        )
    message = str(error.value)
    assert f"port {port} (broker) is taken by " in message
    assert f"({os.getpid()})" in message
    assert message.endswith("stop the process that uses it, or set STEPSTREAM_BROKER_PORT")
    assert "STORE" not in message


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 9401), ("127.0.0.1", 65536)])
def test_an_unusable_port_is_not_reported_as_taken(host: str, port: int) -> None:
    with pytest.raises(StackError, match=r"label cannot listen on .*: set STEPSTREAM_A_PORT, or its host") as error:
        check_free([Port(host, port, "label", "STEPSTREAM_A_PORT")])
    assert "taken" not in str(error.value)


def test_a_port_is_free_once_its_server_closed_despite_time_wait(listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    assert not is_free("127.0.0.1", port)
    with socket.create_connection(("127.0.0.1", port)):
        server_side, _ = listening.accept()
        server_side.close()  # leaves a socket in TIME_WAIT
    listening.close()
    assert is_free("127.0.0.1", port)


def test_every_port_of_a_free_block_is_free() -> None:
    base = free_block(16)
    assert all(is_free("127.0.0.1", base + i) for i in range(16))
