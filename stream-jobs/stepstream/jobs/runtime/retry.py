"""Waiting for a part of the stack that is away, without hanging when the work is taken away meanwhile."""

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from stepstream.topics.codec import Codec, RegistryUnavailable

log = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 2.0
_FIRST_BOUNDED_WAIT_S = 0.5
_LONGEST_BOUNDED_WAIT_S = 20.0
_NAP_S = 0.1

T = TypeVar("T")


class Cancelled(Exception):
    """The partition was taken away or the process is stopping: drop the batch, it will be delivered again."""


def retry_while(
    call: Callable[[], T], away: type[Exception] | tuple[type[Exception], ...], cancelled: Callable[[], bool]
) -> T:
    """The result of `call`, which is tried again with growing pauses for as long as it raises `away`.

    Raises:
        Abandoned: `cancelled` became true while waiting.
    """
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            return call()
        except away as error:
            if wait_s == _FIRST_WAIT_S:
                log.warning("waiting: %s", error)
            if cancelled():
                raise Cancelled from error
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def nap(seconds: float, cancelled: Callable[[], bool]) -> None:
    """Waits.

    Raises:
        Abandoned: `cancelled` became true meanwhile.
    """
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if cancelled():
            raise Cancelled
        time.sleep(min(left, _NAP_S))


class RetriesExhausted(Exception):
    """What was asked does not answer; the message says why."""

    def __init__(self, error: Exception, news: bool) -> None:
        super().__init__(str(error))
        self.news = news
        """Whether it still answered the time before."""


class BoundedRetry:
    """Asks again what does not answer, for a bounded time; once that has passed, once a question until it answers.

    So what cannot be asked is skipped by whoever asks, and the log goes on. Safe to use from several threads.
    """

    def __init__(self, seconds: float, cancelled: Callable[[], bool]) -> None:
        """`cancelled` tells whether to give up waiting."""
        self._seconds, self._cancelled = seconds, cancelled
        self._away: set[str] = set()

    def ask(self, name: str, call: Callable[[], T], away: type[Exception]) -> T:
        """The result of `call`, which is tried again with growing pauses while it raises `away`.

        Raises:
            OutOfPatience: `name`, which is what is asked, has not answered for too long.
            Abandoned: asked to give up while waiting.
        """
        until = time.monotonic() + (0.0 if name in self._away else self._seconds)
        wait_s = _FIRST_BOUNDED_WAIT_S
        while True:
            try:
                found = call()
            except away as error:
                if time.monotonic() + wait_s > until:
                    news = name not in self._away
                    self._away.add(name)
                    raise RetriesExhausted(error, news) from error
                nap(wait_s, self._cancelled)
                wait_s = min(2 * wait_s, _LONGEST_BOUNDED_WAIT_S)
            else:
                self._away.discard(name)
                return found


class Decoder(Protocol):
    """What reads the records that a job keeps."""

    def decode(self, topic: str, value: bytes | None) -> dict[str, Any]:
        """One record from bytes."""
        ...


class RetryingCodec:
    """Decodes what a job keeps, waiting for a registry or keys that are away."""

    def __init__(self, codec: Codec, cancelled: Callable[[], bool]) -> None:
        self._codec, self._cancelled = codec, cancelled

    def decode(self, topic: str, value: bytes | None) -> dict[str, Any]:
        """As `Codec.decode`.

        Raises:
            Abandoned: asked to give up while waiting.
        """
        return retry_while(lambda: self._codec.decode(topic, value), RegistryUnavailable, self._cancelled)
