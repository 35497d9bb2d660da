"""Read and decode labelled trajectories in a process of their own: training does not share its interpreter with it.

    learner ── request ──▶ reader process: `Reader` (thread that decodes, bounded in bytes)
            ◀── Answer ──

The learner's process keeps one request open, so the next records are pickled while it trains. At most one batch of
records is between the processes. The reader process has no state of its own: it ends when its socket closes, and the
log holds everything that it read.
"""

import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException

from stepstream.config import Settings
from stepstream.core.process import Fatal, set_up_logging
from stepstream.crypto.key_ring import sealing_codec
from stepstream.learner import metrics
from stepstream.learner.data.reader import Arrival, Reader
from stepstream.learner.data.sequences import Limits
from stepstream.topics.codec import Codec

log = logging.getLogger(__name__)

_ANSWER_S = 0.05
"""Longest time to wait for records before an answer without any."""
_END_S = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class _Start:
    """First message to the reader process."""

    settings: Settings
    limits: Limits
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class _Answer:
    """Next records, and the state of the reader after them."""

    arrivals: list[Arrival]
    is_behind: bool
    cpu_s: float
    """CPU time of the reader process so far, in seconds."""


@dataclass(frozen=True, slots=True)
class _KafkaFault:
    """A KafkaException, which cannot be pickled."""

    code: int
    text: str


class AheadReader(Protocol):
    """Reads records ahead of the learner."""

    def next(self, timeout_s: float) -> list[Arrival]:
        """Return the next records in order; empty if none came within `timeout_s` seconds. Blocks up to that time."""

    def is_behind(self) -> bool:
        """Return True if the log has records that `next` has not returned, by the last known state; no blocking."""

    def close(self) -> None:
        """Stop reading."""


def open_reader(settings: Settings, codec: Codec, limits: Limits, start: Mapping[int, int]) -> AheadReader:
    """Start to read labelled trajectories at `start` (offset by partition), as `learner.reader` says.

    Raises:
        KafkaException: a topic does not exist, or no broker answers. A process raises it in `next`.
    """
    if settings.learner.reader == "process":
        return ReaderProcess(settings, limits, start)
    return Reader(settings.kafka, codec, limits, start, settings.learner.read_ahead_bytes)


class ReaderProcess:
    """A reader process, as the learner's process sees it."""

    def __init__(self, settings: Settings, limits: Limits, start: Mapping[int, int]) -> None:
        """Start the process."""
        own, others = socket.socketpair()
        # A stop signal to the whole process group is for the learner, which closes the socket: the child inherits the
        # blocked signals.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            # Not `-m`: classes of `__main__` would have another name in the messages.
            command = [sys.executable, "-c", f"from {__name__} import main; main()", str(others.fileno())]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[others.fileno()])
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            others.close()
        self._connection = Connection(own.detach())
        self._behind, self._cpu_s = True, 0.0
        self._send(pickle.dumps(_Start(settings, limits, dict(start))))
        self._send(b"")

    @property
    def pid(self) -> int:
        """Process id of the reader process."""
        return self._process.pid

    def next(self, timeout_s: float) -> list[Arrival]:
        """Return the next records in order; empty if none came within `timeout_s` seconds. Blocks up to that time.

        Raises:
            Fatal: the process is gone.
            Exception: the fault that ended it.
        """
        deadline_s = time.monotonic() + timeout_s
        while self._has_answer(max(0.0, deadline_s - time.monotonic())):
            answer = self._receive()
            self._send(b"")
            self._behind = answer.is_behind
            metrics.READER_CPU.inc(answer.cpu_s - self._cpu_s)
            self._cpu_s = answer.cpu_s
            if answer.arrivals:
                return answer.arrivals
        return []

    def is_behind(self) -> bool:
        """Return True if the log had records that `next` has not returned, at the last answer; no blocking."""
        return self._behind

    def close(self) -> None:
        """End the process and wait for its end."""
        self._connection.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _has_answer(self, timeout_s: float) -> bool:
        try:
            return self._connection.poll(timeout_s)
        except OSError:
            raise self._gone() from None

    def _receive(self) -> _Answer:
        try:
            answer = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise self._gone() from None
        if isinstance(answer, _KafkaFault):
            raise KafkaException(KafkaError(answer.code, answer.text))
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, _Answer)
        return answer

    def _send(self, message: bytes) -> None:
        try:
            self._connection.send_bytes(message)
        except OSError:
            # The process may have sent the fault that ended it: the next answer is that, or the end of the socket.
            log.debug("the reader process no longer takes requests")

    def _gone(self) -> Fatal:
        self._process.wait(_END_S)
        return Fatal(
            f"the reader process ended with status {self._process.returncode}: start the learner again, and it "
            "continues from its last version; if the kernel killed it for its memory, lower learner.read_ahead_mb"
        )


def serve(connection: Connection) -> None:
    """Answer requests until a fault, which is the last answer.

    Raises:
        EOFError, ConnectionError: the other end closed.
    """
    start: _Start = pickle.loads(connection.recv_bytes())
    settings = start.settings
    try:
        reader = Reader(
            settings.kafka, sealing_codec(settings), start.limits, start.offsets, settings.learner.read_ahead_bytes
        )
        while True:
            connection.recv_bytes()
            answer = _Answer(reader.next(_ANSWER_S), reader.is_behind(), time.process_time())
            connection.send_bytes(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))
    except KafkaException as error:
        fault = error.args[0]
        connection.send_bytes(pickle.dumps(_KafkaFault(fault.code(), fault.str())))
    except (EOFError, ConnectionError):
        raise
    except Exception as error:
        log.exception("the reader process stops")
        connection.send_bytes(pickle.dumps(Fatal(f"the reader process failed: {error!r}")))


def main() -> None:
    """Serve the learner at the other end of the socket whose number is the argument."""
    set_up_logging("learner")
    with suppress(EOFError, ConnectionError):
        serve(Connection(int(sys.argv[1])))
    # The reading thread may wait for a broker that is gone, and holds nothing to lose.
    os._exit(0)
