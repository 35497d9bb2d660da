"""Check the messages between the learner and its reader process; the processes themselves are tested with a broker."""

import os
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from labelled_records import LIMITS, labelled
from waiting import TIMEOUT_S

from stepstream.config import load
from stepstream.core.process import Fatal
from stepstream.learner.data import reader_process
from stepstream.learner.data.reader import Arrival, arrival_of
from stepstream.learner.data.reader_process import ReaderProcess
from stepstream.topics.consumer import Event


class ThreadAsProcess:
    """Serves the socket from a thread of this process."""

    returncode = -9

    def __init__(self, _command: list[str], *, pass_fds: list[int], **_: Any) -> None:
        connection = Connection(os.dup(pass_fds[0]))

        def serve() -> None:
            with connection, suppress(EOFError, ConnectionError):
                reader_process.serve(connection)

        self._thread = threading.Thread(target=serve)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)


class ThreeBatches:
    """A reader with three batches of records."""

    def __init__(self, *_: Any) -> None:
        self._left = 3

    def is_behind(self) -> bool:
        return self._left > 0

    def next(self, _timeout_s: float) -> list[Arrival]:
        self._left -= 1
        if self._left < 0:
            return []
        offsets = range(2 * (2 - self._left), 2 * (2 - self._left) + 2)
        records = [labelled("g", offset, 1.0) for offset in offsets]
        return [
            arrival_of(Event("labeled-trajectories", 3, offset, "g", record), LIMITS)
            for offset, record in zip(offsets, records, strict=True)
        ]


@pytest.fixture
def _in_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", ThreadAsProcess)


def fault_of(monkeypatch: pytest.MonkeyPatch, fault: BaseException) -> BaseException:
    def fail(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(reader_process, "Reader", fail)
    reader = ReaderProcess(load(), LIMITS, {})
    try:
        with pytest.raises(Exception) as raised:  # noqa: PT011
            reader.next(TIMEOUT_S)
    finally:
        reader.close()
    return raised.value


@pytest.mark.usefixtures("_in_thread")
def test_records_arrive_in_order_with_their_positions_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_process, "Reader", ThreeBatches)
    reader = ReaderProcess(load(), LIMITS, {})
    try:
        assert reader.is_behind()
        arrivals = [arrival for _ in range(3) for arrival in reader.next(TIMEOUT_S)]
        assert [arrival.position for arrival in arrivals] == [(3, offset) for offset in range(6)]
        for offset, arrival in enumerate(arrivals):
            expected = arrival_of(Event("labeled-trajectories", 3, offset, "g", labelled("g", offset, 1.0)), LIMITS)
            assert arrival.size_bytes == expected.size_bytes > 0
            assert repr(arrival.attempt) == repr(expected.attempt)
        assert reader.next(0.0) == []
        assert not reader.is_behind()
    finally:
        reader.close()


@pytest.mark.usefixtures("_in_thread")
def test_faults_of_the_process_are_raised_in_next(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no topic"))
    raised = fault_of(monkeypatch, missing)
    assert isinstance(raised, KafkaException)
    assert (raised.args[0].code(), raised.args[0].str()) == (KafkaError.UNKNOWN_TOPIC_OR_PART, "no topic")
    raised = fault_of(monkeypatch, ValueError("bad limits"))
    assert isinstance(raised, Fatal)
    assert "ValueError('bad limits')" in str(raised)


@pytest.mark.usefixtures("_in_thread")
def test_a_process_that_is_gone_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    raised = fault_of(monkeypatch, EOFError())  # it ends without an answer
    assert isinstance(raised, Fatal)
    assert "the reader process ended with status -9: start the learner again" in str(raised)


def test_the_process_loads_no_model_library() -> None:
    program = f"import sys, {reader_process.__name__}; print({{'torch', 'transformers'}} & {{*sys.modules}})"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
