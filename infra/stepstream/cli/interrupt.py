"""Handle Ctrl-C, SIGTERM and SIGHUP alike: the first raises, later ones are ignored while the command stops."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """A signal asked this command to end. Not an Exception, so that no error handler catches it."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `Interrupted` in the main thread at the first signal; ignore later ones. Restores the handlers at exit."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(signal.Signals(number).name)

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
