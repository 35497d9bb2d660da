"""Test that a process of vLLM sleeps while it waits for another one's messages, and wakes for them."""

import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from required_tools import require_package

from stepstream.services.inference.vllm_idle import sleep_while_waiting

pytestmark = pytest.mark.vllm

_SOCKETS = ("local_notify_socket", "read_cancel_socket", "write_cancel_socket")


@pytest.fixture
def ends() -> Iterator[tuple[Any, Any]]:
    """Return the two ends of the condition by which vLLM's processes wait."""
    require_package("vllm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what vLLM imports
        import zmq
        from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
        from vllm.utils.network_utils import get_open_zmq_ipc_path

    sleep_while_waiting()
    sleep_while_waiting()
    with ExitStack() as stack:
        context, address = stack.enter_context(zmq.Context()), get_open_zmq_ipc_path()
        both = [SpinCondition(is_reader, context, address) for is_reader in (False, True)]
        for end in both:
            for name in _SOCKETS:
                if (socket := getattr(end, name, None)) is not None:
                    stack.callback(socket.close, 0)
        yield both[0], both[1]


def test_a_reader_takes_no_processor_time_while_it_waits_and_wakes_for_a_message(ends: tuple[Any, Any]) -> None:
    writer, reader = ends
    reader.record_read()
    began, used = time.monotonic(), time.thread_time()
    reader.wait(timeout_ms=200)
    assert time.monotonic() - began >= 0.19  # the poll counts whole milliseconds
    assert time.thread_time() - used < 0.1

    waiting = threading.Thread(target=reader.wait)
    waiting.start()
    while waiting.is_alive():  # the subscription may arrive after the first message
        writer.notify()
        waiting.join(0.05)
