"""Retry calls to services that are unavailable, and stop when the work is cancelled."""

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
_SLEEP_S = 0.1

T = TypeVar("T")


class Cancelled(Exception):
    """The partition was revoked or the process is stopping. Drop the batch: Kafka delivers it again."""


class RetriesExhausted(Exception):
    """A service did not answer within the time limit; the message gives its last error."""

    def __init__(self, error: Exception, is_first: bool) -> None:
        super().__init__(str(error))
        self.is_first = is_first
        """True if the service answered the previous call."""


def retry_while(
    call: Callable[[], T], unavailable: type[Exception] | tuple[type[Exception], ...], cancelled: Callable[[], bool]
) -> T:
    """Call `call` with exponential backoff while it raises `unavailable`; return its result.

    Raises:
        Cancelled: `cancelled` became true while waiting.
    """
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            return call()
        except unavailable as error:
            if wait_s == _FIRST_WAIT_S:
                log.warning("retrying: %s", error)
            if cancelled():
                raise Cancelled from error
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


class BoundedRetry:
    """Retry for a bounded time; after that, call a failed service once per request until it answers again.

    The caller skips the request, so that the job continues. Safe to use from several threads.
    """

    def __init__(self, seconds: float, cancelled: Callable[[], bool]) -> None:
        """Retry each call for up to `seconds`; `cancelled` ends the waiting."""
        self._seconds, self._cancelled = seconds, cancelled
        self._unavailable: set[str] = set()

    def call(self, service: str, call: Callable[[], T], unavailable: type[Exception]) -> T:
        """Call `call` with exponential backoff while it raises `unavailable`; return its result.

        Raises:
            RetriesExhausted: `service` did not answer within the time limit.
            Cancelled: `cancelled` became true while waiting.
        """
        until = time.monotonic() + (0.0 if service in self._unavailable else self._seconds)
        wait_s = _FIRST_BOUNDED_WAIT_S
        while True:
            try:
                result = call()
            except unavailable as error:
                if time.monotonic() + wait_s > until:
                    is_first = service not in self._unavailable
                    self._unavailable.add(service)
                    raise RetriesExhausted(error, is_first) from error
                interruptible_sleep(wait_s, self._cancelled)
                wait_s = min(2 * wait_s, _LONGEST_BOUNDED_WAIT_S)
            else:
                self._unavailable.discard(service)
                return result


def interruptible_sleep(seconds: float, cancelled: Callable[[], bool]) -> None:
    """Sleep.

    Raises:
        Cancelled: `cancelled` became true.
    """
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if cancelled():
            raise Cancelled
        time.sleep(min(left, _SLEEP_S))


class Decoder(Protocol):
    """Decodes the records that a job keeps in its state."""

    def decode(self, topic: str, value: bytes | None) -> dict[str, Any]:
        """Decode one record."""
        ...


class RetryingCodec:
    """Decodes records of a job's state; waits while the registry or the keys are unavailable."""

    def __init__(self, codec: Codec, cancelled: Callable[[], bool]) -> None:
        self._codec, self._cancelled = codec, cancelled

    def decode(self, topic: str, value: bytes | None) -> dict[str, Any]:
        """As `Codec.decode`.

        Raises:
            Cancelled: the work was cancelled while waiting.
        """
        return retry_while(lambda: self._codec.decode(topic, value), RegistryUnavailable, self._cancelled)
