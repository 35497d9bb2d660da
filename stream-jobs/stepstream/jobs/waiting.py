"""Waiting for a part of the stack that is away, without hanging when the work is taken away meanwhile."""

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from stepstream.topics.codec import Codec, RegistryUnavailable

log = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 2.0

T = TypeVar("T")


class Abandoned(Exception):
    """The partition was taken away or the process is stopping: drop the batch, it will be delivered again."""


def patiently(
    call: Callable[[], T], away: type[Exception] | tuple[type[Exception], ...], abandoned: Callable[[], bool]
) -> T:
    """The result of `call`, which is tried again with growing pauses for as long as it raises `away`.

    Raises:
        Abandoned: `abandoned` became true while waiting.
    """
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            return call()
        except away as error:
            if wait_s == _FIRST_WAIT_S:
                log.warning("waiting: %s", error)
            if abandoned():
                raise Abandoned from error
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


class Decoder(Protocol):
    """What reads the records that a job keeps."""

    def decode(self, topic: str, value: bytes | None) -> dict[str, Any]:
        """One record from bytes."""
        ...


class PatientCodec:
    """Decodes what a job keeps, waiting for a registry or keys that are away."""

    def __init__(self, codec: Codec, abandoned: Callable[[], bool]) -> None:
        self._codec, self._abandoned = codec, abandoned

    def decode(self, topic: str, value: bytes | None) -> dict[str, Any]:
        """As `Codec.decode`.

        Raises:
            Abandoned: asked to give up while waiting.
        """
        return patiently(lambda: self._codec.decode(topic, value), RegistryUnavailable, self._abandoned)
